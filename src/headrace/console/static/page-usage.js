// What was used and what it costs, by model and day, straight from the ledger.

import { get } from "./api.js";
import { stackedBars } from "./chart.js";
import { element, table, to } from "./dom.js";
import { count, day, dollars, lastDays, short } from "./format.js";

const spans = [7, 14, 30];
const measures = {
  Cost: { value: (item) => item.cost.nanousd, format: dollars },
  Tokens: { value: (item) => item.prompt_tokens + item.completion_tokens, format: short },
  Requests: { value: (item) => item.requests, format: short },
};
const chosen = { span: 14, measure: "Tokens", by: "model" };

export const usage = {
  title: "Usage", group: "Money", needs: "usage.read", ticks: true,

  async load(caller) {
    const span = lastDays(chosen.span);
    const [byDay, byTenant] = await Promise.all([
      get(`/usage?by=${chosen.by},day&since=${span[0]}&${caller.view.usage}`),
      get(`/usage?by=tenant,model&since=${span[0]}&${caller.view.usage}`),
    ]);
    return { span, byDay, byTenant, chosen: { ...chosen } };
  },

  render({ span, byDay, byTenant }, refresh) {
    const measure = measures[chosen.measure];
    const newestFirst = [...byDay.items].sort((a, b) =>
      b.day.localeCompare(a.day) || nameOf(a).localeCompare(nameOf(b)));
    const empty = "No requests in this time.";
    return [
      element("section", { class: "card" },
        element("div", { class: "card-head" },
          choices("By", ["model", "key", "project", "tenant"], "by", (name) => `By ${name}`, refresh),
          choices("Measure", Object.keys(measures), "measure", (name) => name, refresh),
          choices("Time", spans, "span", (length) => `${length} days`, refresh)),
        stackedBars(`${chosen.measure} by ${chosen.by} and day`, span, byDay.items.map((item) => ({
          day: item.day, name: nameOf(item), value: measure.value(item),
        })), measure.format)),
      element("section", { class: "card" }, element("h2", {}, "By tenant and model"),
        table("Usage by tenant and model", [
          { label: "Tenant", title: true, value: (row) => element("strong", {}, row.tenant ?? "Total") },
          { label: "Model", value: (row) => row.model ?? "" }, ...columns(span),
        ], byTenant.items, empty, byTenant.items.length > 1 ? byTenant.total : null)),
      element("section", { class: "card" }, element("h2", {}, `By day and ${chosen.by}`),
        table("Usage by day and model", [
          { label: "Day", title: true, value: (row) => element("strong", {}, row.day ? day(row.day) : "Total") },
          { label: "Of", value: (row) => nameOf(row) }, ...columns(span),
        ], newestFirst, empty, newestFirst.length > 1 ? byDay.total : null)),
    ];
  },
};

const nameOf = (row) => row[chosen.by] ?? "";

/** The numbers of a row; each leads to the requests that it was summed from. */
const columns = (span) => [
  { label: "Requests", number: true, value: (row) => rows(row, count(row.requests), span) },
  { label: "Aborted", number: true, value: (row) => rows(row, count(row.aborted), span, "aborted") },
  { label: "Failed", number: true, value: (row) => rows(row, count(row.failed), span, "failed") },
  { label: "Prompt", number: true, value: (row) => rows(row, count(row.prompt_tokens), span) },
  { label: "Cached", number: true, value: (row) => rows(row, count(row.cached_tokens), span) },
  { label: "Completion", number: true, value: (row) =>
    rows(row, count(row.completion_tokens), span) },
  { label: "Cost", number: true, value: (row) => rows(row, element("span", {
    title: `$${row.cost.usd}` }, dollars(row.cost.nanousd),
  row.unrated ? ` + ${count(row.unrated)} unrated` : ""), span) },
];

function rows(row, content, span, outcome = null) {
  const until = row.day && new Date(Date.parse(row.day) + 86_400_000).toISOString().slice(0, 10);
  return to(content, "requests", {
    tenant: row.tenant_id, project: row.project_id, key: row.key_id, model: row.model, outcome,
    since: row.day ?? span[0], until,
  });
}

function choices(label, options, field, text, refresh) {
  return element("div", { class: "choices", role: "group", "aria-label": label },
    options.map((option) => element("button", {
      type: "button", id: `${field}-${option}`, "aria-pressed": String(chosen[field] === option),
      click: () => {
        chosen[field] = option;
        refresh();
      },
    }, text(option))));
}
