// Lines of runs that have the same setting, as one line each: their mean, with the band from the lowest to the highest.

import { nearest } from "/static/charts/lines.js";

const GRID = 400; // Most points of a line of a group.

// Returns one line per group of lines { label, index, points, group }; a group of one run stays a line.
export function groupLines(lines, by) {
  const axis = by === "step" ? 0 : 1;
  const groups = new Map();
  for (const line of lines) groups.set(line.group, [...(groups.get(line.group) ?? []), line]);
  return [...groups].map(([name, members], index) => {
    const label = members.length > 1 ? `${name} (${members.length})` : name;
    return { label, index, points: merged(members.map((line) => line.points), axis) };
  });
}

// Points of several lines at the positions of the longest one; a line counts only between its ends.
function merged(all, axis) {
  const present = all.filter((points) => points.length);
  if (present.length < 2) return present[0] ?? [];
  const longest = present.reduce((most, points) => (points.length > most.length ? points : most));
  const stride = Math.ceil(longest.length / GRID);
  const columns = present.map((points) => [points.map((point) => point[axis]), points]);
  return longest.filter((_, index) => index % stride === 0 || index === longest.length - 1).map((point) => {
    const x = point[axis];
    const slack = (longest.at(-1)[axis] - longest[0][axis]) / Math.max(1, longest.length - 1);
    const values = columns.filter(([xs]) => x >= xs[0] - slack && x <= xs.at(-1) + slack).map(([xs, points]) =>
      points[nearest(xs, x)]).map((item) => item[6] ?? item[4] ?? item[2]).filter(Number.isFinite);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return [point[0], point[1], Math.min(...values), Math.max(...values), mean, 0, mean];
  });
}
