// How numbers are told. What was not measured is an empty text.

const NONFINITE = { nan: "NaN", inf: "∞", "-inf": "−∞" };
const PREFIXES = ["", "k", "M", "G", "T", "P"];

// A number of the API: NaN and infinities come as texts.
export function real(value) {
  if (typeof value === "number") return value;
  return { nan: NaN, inf: Infinity, "-inf": -Infinity }[value];
}

export function number(value, digits = 5) {
  if (value === undefined || value === null) return "";
  if (value in NONFINITE) return NONFINITE[value];
  if (!Number.isFinite(value)) return NONFINITE[String(value).toLowerCase().replace("inity", "")] ?? String(value);
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

// When, of Unix seconds: the time alone when it was today.
export function when(seconds) {
  if (!Number.isFinite(seconds)) return "";
  const date = new Date(1000 * seconds);
  const two = (one) => String(one).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

// How long ago, as of `now`, the daemon's clock.
export function ago(seconds, now) {
  return Number.isFinite(seconds) && Number.isFinite(now) ? `${span(Math.max(0, now - seconds))} ago` : "";
}

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}
