// The charts of a benchmark: latency by percentile under each load, and throughput over loads. Reports contain it too.

import { number, span } from "/static/format.js";

const MOST_CHARTS = 24;
const SHARES = [0.5, 0.9, 0.99, 0.999]; // Those that the axis names.
const LOADS = { batch: "batch size", length: "length", concurrency: "requests in flight", rate: "requests per second" };

const percentile = (share) => `p${number(100 * share)}`;
// Each further nine has the same width, so that the tail is not squeezed.
const nines = (share) => -Math.log10(1 - share);

// Returns charts of what was measured, each variant a line: { title, format(value), axis: { name, splits, label(x) },
// lines:
// [{ label, index, points: [[0, x, low, high, value]] }] }.
export function benchmarkCharts(measured) {
  const found = measured.filter((item) => Array.isArray(item.curve) && item.variant);
  const variants = [...new Set(found.map((item) => item.variant))];
  const lines = (items, pointsOf) => variants.map((label, index) => ({ label, index,
    points: items.filter((item) => item.variant === label).flatMap(pointsOf) })).filter((line) => line.points.length);
  const latencies = [...Map.groupBy(found, (item) => item.load)].map(([load, items]) => ({
    title: load ? `${load}: latency by percentile` : "Latency by percentile",
    format: (value) => span(value),
    axis: { name: "percentile", splits: SHARES.map(nines), label: (x) => percentile(1 - 10 ** -x) },
    lines: lines(items, (item) => item.curve.filter(([share]) => share < 1).map(([share, value, low, high]) =>
      [0, nines(share), low ?? value, high ?? value, value])),
  }));
  return [...Object.keys(LOADS).flatMap((name) => throughputs(found, name, lines)), ...latencies].slice(0, MOST_CHARTS);
}

// Returns charts of the throughput over one part of the load, one for each combination of its other parts.
function throughputs(found, name, lines) {
  const others = (item) => Object.keys(LOADS).filter((other) => other !== name && item[other])
    .map((other) => `${other}=${item[other]}`).join(" ");
  const groups = Map.groupBy(found.filter((item) => item[name] > 0 && Number.isFinite(item.throughput)), others);
  return [...groups].map(([rest, items]) => {
    const amounts = [...new Set(items.map((item) => item[name]))].sort((a, b) => a - b);
    return {
      title: rest ? `${rest}: throughput over ${LOADS[name]}` : `Throughput over ${LOADS[name]}`,
      format: (value) => (Number.isFinite(value) ? `${number(value)} ${items[0].throughput_unit}/s` : ""),
      axis: { name: LOADS[name], splits: amounts.map(Math.log2), label: (x) => number(2 ** x) },
      lines: lines(items, ({ throughput: value, throughput_interval: ends, ...item }) =>
        [[0, Math.log2(item[name]), ends?.[0] ?? value, ends?.[1] ?? value, value]]),
    };
  }).filter(({ axis }) => axis.splits.length > 1);
}
