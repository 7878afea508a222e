// The one spelling of numbers, shares, sizes and durations, as of the daemon's model/text.py: tests/model/spelling.json
// has cases of both. Unmeasured values become an empty text. Reports contain this file too.

const NONFINITE = new Map([["nan", NaN], ["inf", Infinity], ["-inf", -Infinity]]);
const WHOLE = new Intl.NumberFormat("en-US");
const PREFIXES = ["", "k", "M", "G", "T", "P"];
/** @type {[number, string, number, string][]} */
const UNITS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];

// Returns the address of a run's page.
export function runAddress(id) {
  return `/runs/${encodeURIComponent(id)}`;
}

// Returns a number of the API, where NaN and infinities are texts; undefined for anything else.
export function real(value) {
  return typeof value === "number" ? value : NONFINITE.get(value);
}

// Returns a text as it is, and another value as JSON.
export function plain(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

// Formats a number in `digits` digits, a whole one in all of its digits: 12345 is "12,345".
export function number(value, digits = 4) {
  if (value === undefined || value === null) return "";
  const finite = real(value);
  if (finite === undefined) return String(value);
  if (Number.isNaN(finite)) return "NaN";
  if (!Number.isFinite(finite)) return finite > 0 ? "infinite" : "minus infinite";
  const size = Math.abs(finite);
  if (size < 1e15 && (Number.isInteger(finite) || size >= 10 ** digits - 0.5))
    return WHOLE.format(Math.round(finite) + 0);
  const rounded = Number(finite.toPrecision(digits));
  if (Math.abs(rounded) >= 1e-4 && size < 1e15) return String(rounded);
  const [mantissa, exponent] = rounded.toExponential().split("e");
  return `${mantissa}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

// Returns a value in three digits, and the power of `base` with which it is below a thousand.
function scaled(value, base) {
  let power = 0;
  for (; Math.abs(value) >= 999.5 && power < PREFIXES.length - 1; power += 1) value /= base;
  return [number(value, 3), power];
}

// Formats a count with a decimal prefix, for little room: 12345 is "12.3k".
export function short(value) {
  return Number.isFinite(value)
    ? scaled(value, 1000).map((part, index) => (index ? PREFIXES[part] : part)).join("") : "";
}

// Formats with a decimal prefix of the unit: 1700000000 is "1.7 GHz".
export function withUnit(value, unit) {
  if (!Number.isFinite(value)) return "";
  const [text, power] = scaled(value, 1000);
  return `${text} ${PREFIXES[power]}${unit}`;
}

// Formats with a binary prefix: 1073741824 is "1 GiB".
export function bytes(value) {
  if (!Number.isFinite(value)) return "";
  const [text, power] = scaled(value, 1024);
  return `${text} ${power ? `${PREFIXES[power].toUpperCase()}iB` : "B"}`;
}

// Formats a part of a whole: "56.5 GiB of 80 GiB".
export function usedOfTotal(used, total, format = bytes) {
  return format(used) && format(total) ? `${format(used)} of ${format(total)}` : format(used);
}

export function percent(ratio) {
  if (!Number.isFinite(ratio)) return "";
  const value = 100 * ratio;
  if (Math.abs(value) >= 1e-4 && Math.abs(value) < 0.05) return `${number(value, 1)} %`;
  return `${(Number(value.toFixed(1)) + 0).toLocaleString("en-US", { minimumFractionDigits: 1 })} %`;
}

// Formats a number of seconds in at most two units.
export function span(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds <= 0) return "0 s";
  if (seconds < 0.0009995) return `${number(1e6 * seconds, 3)} µs`;
  if (seconds < 0.9995) return `${number(1e3 * seconds, 3)} ms`;
  if (seconds < 59.95) return `${number(seconds, 3)} s`;
  const whole = Math.round(seconds);
  const [large, unit, small, smaller] = UNITS.find(([size]) => whole >= size);
  const rest = Math.floor((whole % large) / small);
  return `${number(Math.floor(whole / large))} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
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

// Formats how much of a plan is done; a run can make more steps than it has planned.
export const ofPlanned = (step, total, ratio) =>
  `of ${number(total)}, ${percent(step > total ? step / total : ratio)}`;

export function plural(count, singular, many = `${singular}s`) {
  return `${number(count)} ${count === 1 ? singular : many}`;
}
