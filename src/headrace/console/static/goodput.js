// Goodput and how fast error budgets burn, by model; the figures that alerts go by.

import { badge, element, meter, table, to } from "./dom.js";
import { count, seconds, share } from "./format.js";

const names = { 300: "5 min", 3600: "1 h", 21600: "6 h" };
const burnPage = 14.4; // at which somebody is woken
const burnTicket = 1; // at which the budget does not last

/** A model's windows side by side; what has no requests says so. */
export function goodputTable(items) {
  return table("Goodput by model", [
    { label: "Model", title: true, value: (row) =>
      to(element("strong", {}, row.model), "requests", { model: row.model }) },
    { label: "Objectives", value: (row) => objectiveText(row.objectives) },
    ...[0, 1, 2].map((index) => ({
      label: `Goodput, ${names[items[0]?.windows[index]?.window_s] ?? ""}`, number: true,
      value: (row) => figure(row.windows[index], row.model),
    })),
    { label: "Budget burns", value: (row) => burn(row.windows) },
  ], items, "No models yet.");
}

function objectiveText(objectives) {
  const parts = objectives ? [
    objectives.ttft_s === null ? "" : `first token ${seconds(objectives.ttft_s)}`,
    objectives.inter_token_s === null ? "" : `then ${seconds(objectives.inter_token_s)} each`,
  ].filter(Boolean) : [];
  return parts.join(", ") || "to finish";
}

function figure(window, model) {
  if (window.good_share === null) return "–";
  return to(element("span", {
    title: `${count(window.good_requests)} of ${count(window.requests)}, in ${Math.round(window.observed_s)} s`,
  }, share(window.good_share)), "requests", { model });
}

/** The burn that an alert would look at: high over a long and a short time. */
function burn(windows) {
  const [short, long] = windows;
  const rate = Math.min(short.burn_rate ?? 0, long.burn_rate ?? 0);
  if (long.burn_rate === null) return element("span", { class: "muted" }, "nothing to judge");
  const tone = rate >= burnPage ? "bad" : rate > burnTicket ? "warn" : "good";
  const left = Math.max(0, 1 - long.burn_rate * (long.observed_s / (30 * 86_400)));
  return element("span", { class: "near" },
    badge(rate <= burnTicket ? "within budget" : `${rate.toFixed(1)} × too fast`, tone),
    meter(1 - left, "Share of the month's error budget used lately"));
}
