// The alerts page, and the page of one alert.

import { alertsPage } from "/static/alerts/list.js";
import { alertPage } from "/static/alerts/detail.js";

export const title = "Alerts";

export function show(/** @type {Address} */ address) {
  return address.parts.length ? alertPage(address) : alertsPage(address);
}
