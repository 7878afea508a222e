// Formatting of numbers and times. Unmeasured values become an empty text.

const NONFINITE = new Map([["nan", { value: NaN, text: "NaN" }], ["inf", { value: Infinity, text: "∞" }], ["-inf", { value: -Infinity, text: "−∞" }]]);
const PREFIXES = ["", "k", "M", "G", "T", "P"];

// Returns the address of a run's page.
export function runAddress(id) {
  return `/runs/${encodeURIComponent(id)}`;
}

// Returns a number of the API, where NaN and infinities are texts; undefined for anything else.
export function real(value) {
  return typeof value === "number" ? value : NONFINITE.get(value)?.value;
}

export function number(value, digits = 5) {
  if (value === undefined || value === null) return "";
  if (!Number.isFinite(value)) return NONFINITE.get(String(value).toLowerCase().replace("inity", ""))?.text ?? String(value);
  const size = Math.abs(value);
  if (value === 0 || Number.isInteger(value) && size < 1e9) return String(value);
  if (size >= 1e-4 && size < 1e6) return String(Number(value.toPrecision(digits)));
  return value.toExponential(Math.max(0, digits - 3));
}

// Formats with a decimal prefix: 12345 is "12.3k".
export function short(value, unit = "") {
  if (!Number.isFinite(value)) return "";
  let power = 0;
  for (; Math.abs(value) >= 999.5 && power < PREFIXES.length - 1; power += 1) value /= 1000;
  return `${Number(value.toPrecision(3))}${PREFIXES[power]}${unit}`;
}

// Formats with a binary prefix: 1073741824 is "1 GiB".
export function bytes(value) {
  if (!Number.isFinite(value)) return "";
  let power = 0;
  for (; Math.abs(value) >= 1023.5 && power < PREFIXES.length - 1; power += 1) value /= 1024;
  return `${Number(value.toPrecision(3))} ${power ? `${PREFIXES[power].toUpperCase()}iB` : "B"}`;
}

export function percent(ratio, digits = 0) {
  return Number.isFinite(ratio) ? `${(100 * ratio).toFixed(digits)} %` : "";
}

// Formats a number of seconds in its two largest units.
export function span(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 0.9995) return `${Number((1000 * seconds).toPrecision(3))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${seconds.toFixed(0)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return seconds < 600 ? `${Math.floor(Math.round(seconds) / 60)} min ${Math.round(seconds) % 60} s` : `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

// Formats Unix seconds with year and day in the zone of the browser, which the head of the page names.
export function when(seconds) {
  if (!Number.isFinite(seconds)) return "";
  const date = new Date(1000 * seconds);
  const pad = (value) => String(value).padStart(2, "0");
  const time = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${time}`;
}

// Formats how long ago a time was, as of `now` on the daemon's clock.
export function ago(seconds, now) {
  return Number.isFinite(seconds) && Number.isFinite(now) ? `${span(Math.max(0, now - seconds))} ago` : "";
}

export function plural(count, singular, many = `${singular}s`) {
  return `${count} ${count === 1 ? singular : many}`;
}
