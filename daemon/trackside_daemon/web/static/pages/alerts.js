// Alerts: what fires, what is silent, what has fired; and all that is known of one.

import { list } from "/static/alerts/list.js";
import { one } from "/static/alerts/one.js";

export const title = "Alerts";

export function show(place) {
  return place.parts.length ? one(place) : list(place);
}
