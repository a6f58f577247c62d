// A stacked bar chart in SVG: days across, one colour a series, a title on each bar for the exact
// number. The tables beside it carry the same numbers for whoever does not see it.

import { drawing, element } from "./dom.js";
import { day } from "./format.js";

const height = 220; // of the drawing, in pixels; its width is its container's
const margin = { left: 56, right: 4, top: 10, bottom: 26 };
const labelWidth = 72;
const barWidthMax = 40;
const seriesMax = 6;

/**
 * Draw `rows` of `{day, name, value}`. `format` writes a value; the largest series come first and
 * those beyond the sixth are added up as "other". Drawn anew whenever its container's width changes.
 */
export function stackedBars(label, days, rows, format) {
  const names = seriesNames(rows);
  if (!rows.some((row) => row.value > 0)) {
    return element("div", { class: "empty" }, "No requests in this time.");
  }
  const sums = days.map((each) => stack(rows.filter((row) => row.day === each), names));
  const box = element("div", { class: "chart", role: "img", "aria-label": label });
  new ResizeObserver(([entry]) => {
    box.replaceChildren(draw(entry.contentRect.width, days, names, sums, format));
  }).observe(box);
  return element("div", {}, box, legend(names));
}

function draw(width, days, names, sums, format) {
  const inner = Math.max(1, width - margin.left - margin.right);
  const top = roundUp(Math.max(...sums.map((parts) => total(parts)), 0));
  const y = (value) =>
    margin.top + (height - margin.top - margin.bottom) * (1 - value / top);
  const svg = drawing("svg", { width, height, "aria-hidden": "true" });
  for (const value of top > 1 ? [0, top / 2, top] : [0, top]) {
    svg.append(
      drawing("line", {
        class: "grid", x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value),
      }),
      drawing("text", { x: margin.left - 8, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  const slot = inner / days.length;
  const bar = Math.min(barWidthMax, slot * 0.68);
  const every = Math.ceil(labelWidth / slot);
  days.forEach((each, index) => {
    const x = margin.left + slot * index + (slot - bar) / 2;
    let below = 0;
    sums[index].forEach((value, series) => {
      if (value <= 0) return;
      svg.append(drawing("rect", {
        class: `series-${series}`, x, width: bar, y: y(below + value),
        height: Math.max(1, y(below) - y(below + value)),
      }, drawing("title", {}, `${names[series]}, ${day(each)}: ${format(value)}`)));
      below += value;
    });
    if ((days.length - 1 - index) % every === 0) {
      const middle = x + bar / 2;
      const fits = middle + labelWidth / 3 <= width;
      svg.append(drawing("text", {
        x: fits ? middle : width, y: height - 6, "text-anchor": fits ? "middle" : "end",
      }, day(each)));
    }
  });
  return svg;
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
