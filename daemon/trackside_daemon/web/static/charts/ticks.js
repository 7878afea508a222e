// Texts of the ticks of an axis: all in one format, with as many digits as tell them apart.

/** @type {[number, string][]} */
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

// Returns the texts of numbers; null is an empty text. On a log axis, each has its own digits.
export function tickTexts(splits, log = false) {
  const present = splits.filter((item) => item !== null && item !== undefined);
  if (log && present.every((item) => Math.abs(item) >= 1e-3 && Math.abs(item) < 1e5))
    return texts(splits, (item) => String(Number(item.toPrecision(4))));
  if (log) return scientific(splits, present);
  const largest = Math.max(...present.map(Math.abs));
  if (!present.length) return splits.map(() => "");
  const gap = present.length > 1
    ? Math.min(...present.slice(1).map((item, index) => Math.abs(item - present[index])).filter((item) => item > 0))
    : largest || 1;
  const [size, unit] = (largest >= 1e4 && PREFIXES.find(([each]) => largest >= each)) || [1, ""];
  const decimals = Math.max(0, ...present.map((item) => places(item / size, gap / size)));
  if (size > 1 && decimals > 3 || size === 1 && (decimals > 4 || largest >= 1e15)) return scientific(splits, present);
  return texts(splits, (item) => `${(item / size).toFixed(decimals)}${item === 0 ? "" : unit}`);
}

// Returns about five round numbers between two.
export function roundSplits(low, high) {
  const raw = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const pace = [1, 2, 5, 10].find((item) => item * power >= raw) * power;
  const first = Math.ceil(low / pace);
  return Array.from({ length: Math.floor(high / pace) - first + 1 },
    (_, index) => Number(((first + index) * pace).toPrecision(12)));
}

// The decimals that a tick needs: those of the distance between ticks.
function places(value, gap) {
  for (let count = 0; count < 20; count += 1) {
    const shown = Number(value.toFixed(count));
    if (Math.abs(shown - value) <= gap * 1e-3) return count;
  }
  return 20;
}

// All with the same number of digits: 5.0×10⁻⁵ beside 1.0×10⁻⁴; powers of ten alone on a log axis.
function scientific(splits, present) {
  const parts = (item) => item.toExponential(3).split("e");
  const digits = Math.max(...present.map((item) => String(Number(parts(item)[0])).replace(/^-?\d+\.?/, "").length));
  const alone = present.every((item) => item === 0 || Number(parts(item)[0]) === 1);
  return texts(splits, (item) => {
    if (item === 0) return "0";
    const [mantissa, exponent] = item.toExponential(digits).split("e");
    return `${alone ? "" : `${mantissa}×`}10${superscript(Number(exponent))}`;
  });
}

const superscript = (value) =>
  `${value < 0 ? "⁻" : ""}${[...String(Math.abs(value))].map((digit) => SUPERSCRIPTS[digit]).join("")}`;

function texts(splits, format) {
  return splits.map((item) => (item === null || item === undefined ? "" : format(item).replace(/^-/, "−")));
}
