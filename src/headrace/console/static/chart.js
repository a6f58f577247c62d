// A stacked bar chart in SVG: days across, one colour a series, a title on each bar for the exact
// number. The tables beside it carry the same numbers for whoever does not see it.

import { drawing, element } from "./dom.js";
import { day } from "./format.js";

const size = { width: 720, height: 220, left: 56, right: 4, top: 10, bottom: 26 };
const seriesMax = 6;

/**
 * Draw `rows` of `{day, name, value}`. `format` writes a value; the largest series come first and
 * those beyond the sixth are added up as "other".
 */
export function stackedBars(label, days, rows, format) {
  const names = seriesNames(rows);
  const sums = days.map((each) => stack(rows.filter((row) => row.day === each), names));
  const top = roundUp(Math.max(...sums.map((parts) => total(parts)), 0));
  const inner = size.width - size.left - size.right;
  const height = size.height - size.top - size.bottom;
  const slot = inner / days.length;
  const width = Math.min(34, slot * 0.68);
  const y = (value) => size.top + height * (1 - value / top);
  const chart = drawing("svg", {
    class: "chart", viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": label,
  });
  for (const share of [0, 0.5, 1]) {
    chart.append(
      drawing("line", {
        class: "grid", x1: size.left, x2: size.width - size.right, y1: y(top * share),
        y2: y(top * share),
      }),
      drawing("text", { x: size.left - 8, y: y(top * share) + 4, "text-anchor": "end" },
        format(top * share)));
  }
  const every = Math.ceil(days.length / 7);
  days.forEach((each, index) => {
    const x = size.left + slot * index + (slot - width) / 2;
    let below = 0;
    sums[index].forEach((value, series) => {
      if (value <= 0) return;
      const bar = drawing("rect", {
        class: `series-${series}`, x, width, rx: 2, y: y(below + value),
        height: Math.max(1, y(below) - y(below + value)),
      }, drawing("title", {}, `${names[series]}, ${day(each)}: ${format(value)}`));
      chart.append(bar);
      below += value;
    });
    if ((days.length - 1 - index) % every === 0) {
      chart.append(drawing("text", {
        x: x + width / 2, y: size.height - 6, "text-anchor": "middle",
      }, day(each)));
    }
  });
  return element("div", {}, chart, legend(names));
}

function legend(names) {
  if (names.length === 0) return null;
  return element("ul", { class: "legend" }, names.map((name, series) =>
    element("li", {}, element("span", { class: `series-${series}` }), name)));
}

function seriesNames(rows) {
  const sums = new Map();
  for (const row of rows) sums.set(row.name, (sums.get(row.name) ?? 0) + row.value);
  const ordered = [...sums].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  return ordered.length <= seriesMax ? ordered : [...ordered.slice(0, seriesMax - 1), "other"];
}

function stack(rows, names) {
  const parts = names.map(() => 0);
  for (const row of rows) {
    const index = names.indexOf(row.name);
    parts[index === -1 ? names.length - 1 : index] += row.value;
  }
  return parts;
}

const total = (parts) => parts.reduce((sum, part) => sum + part, 0);

function roundUp(value) {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * unit).find((step) => step >= value);
}
