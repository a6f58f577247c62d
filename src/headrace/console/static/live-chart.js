// Lines over the last minutes, drawn by uPlot; the tiles above carry the newest values as text.

import { element } from "./dom.js";

const height = 170;

/** Draw `lines` of `{label, values, colour}` over `times` (seconds); `format` writes a value. */
export function liveChart(label, times, lines, format) {
  const box = element("div", { class: "live-chart chart-hold", role: "img", "aria-label": label });
  if (times.length < 2) {
    return element("div", { class: "empty live-chart" }, "The first samples come in some seconds.");
  }
  if (lines.every((line) => line.values.every((value) => value === null))) {
    return element("div", { class: "empty live-chart" }, "Nothing was answered in these minutes.");
  }
  let plot = null;
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width === 0) return;
    if (plot) plot.setSize({ width, height });
    else plot = draw(box, width, times, lines, format);
  }).observe(box);
  return element("div", {}, box, element("ul", { class: "legend" }, lines.map((line) =>
    element("li", {}, element("span", { class: line.colour }), line.label))));
}

function draw(box, width, times, lines, format) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => resolved(style, name);
  const axis = {
    stroke: colour("--muted"), font: `12px ${getComputedStyle(document.body).fontFamily}`,
    grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
  };
  return new window.uPlot({
    width, height, padding: [8, 30, 0, 0], legend: { show: false }, cursor: { y: false, points: { size: 6 } },
    scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.15, 0.001)] } },
    axes: [
      { ...axis, space: 90, size: 26, grid: { show: false },
        values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB")) },
      { ...axis, size: 52, space: 44, values: (_, ticks) => ticks.map((tick) => format(tick)) },
    ],
    series: [{}, ...lines.map((line) => ({
      label: line.label, stroke: colour(`--${line.colour}`), width: 2, spanGaps: true,
      fill: lines.length === 1 ? colour("--accent-soft") : undefined,
    }))],
  }, [times, ...lines.map((line) => line.values)], box);
}

/** A custom colour as the browser resolved it for this theme; a canvas knows no light-dark(). */
function resolved(style, name) {
  const probe = element("span", { hidden: true });
  document.body.append(probe);
  probe.style.color = `var(${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
