// How numbers are told. What was not measured is an empty text.

const NONFINITE = new Map([["nan", { value: NaN, text: "NaN" }], ["inf", { value: Infinity, text: "∞" }], ["-inf", { value: -Infinity, text: "−∞" }]]);
const PREFIXES = ["", "k", "M", "G", "T", "P"];

// The address of a run's page.
export function runAddress(id) {
  return `/runs/${encodeURIComponent(id)}`;
}

// A number of the API: NaN and infinities come as texts.
export function real(value) {
  return typeof value === "number" ? value : NONFINITE.get(value)?.value;
}

export function number(value, digits = 5) {
  if (value === undefined || value === null) return "";
  if (!Number.isFinite(value)) return NONFINITE.get(String(value).toLowerCase().replace("inity", ""))?.text ?? String(value);
  const size = Math.abs(value);
  if (value === 0 || Number.isInteger(value) && size < 1e9) return String(value);
  if (size >= 1e-3 && size < 1e6) return String(Number(value.toPrecision(digits)));
  return value.toExponential(Math.max(0, digits - 3));
}

// With a prefix of thousands: 12345 is "12.3k".
export function short(value, unit = "") {
  if (!Number.isFinite(value)) return "";
  let power = 0;
  for (; Math.abs(value) >= 999.5 && power < PREFIXES.length - 1; power += 1) value /= 1000;
  return `${Number(value.toPrecision(3))}${PREFIXES[power]}${unit}`;
}

// Of 1024: 1073741824 is "1 GiB".
export function bytes(value) {
  if (!Number.isFinite(value)) return "";
  let power = 0;
  for (; Math.abs(value) >= 1023.5 && power < PREFIXES.length - 1; power += 1) value /= 1024;
  return `${Number(value.toPrecision(3))} ${power ? `${PREFIXES[power].toUpperCase()}iB` : "B"}`;
}

export function percent(ratio, digits = 0) {
  return Number.isFinite(ratio) ? `${(100 * ratio).toFixed(digits)} %` : "";
}

// A span of seconds, in its two largest units.
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

// When, of Unix seconds. Always with the day: what was written yesterday may still be on a page; with the year when it is
// another.
export function when(seconds) {
  if (!Number.isFinite(seconds)) return "";
  const date = new Date(1000 * seconds);
  const two = (one) => String(one).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const year = date.getFullYear() === new Date().getFullYear() ? "" : `${date.getFullYear()}-`;
  return `${year}${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

// How long ago, as of `now`, the daemon's clock.
export function ago(seconds, now) {
  return Number.isFinite(seconds) && Number.isFinite(now) ? `${span(Math.max(0, now - seconds))} ago` : "";
}

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}
