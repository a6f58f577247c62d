// The rows behind every sum: settled requests one by one, the newest first.

import { get } from "./api.js";
import { badge, card, element, pager, table, to } from "./dom.js";
import { count, dollars, moment } from "./format.js";

const rowsMax = 100;
const filters = ["tenant", "project", "key", "model", "outcome", "replica", "since", "until"];
const toneOfOutcome = { finished: "good", aborted: "idle", failed: "bad", rejected: "warn" };

export const requests = {
  title: "Requests", group: "Money", needs: "usage.read", ticks: true,

  async load(caller, parameters) {
    const asked = Object.entries(parameters).filter(([name]) => filters.includes(name));
    const mine = [...new URLSearchParams(caller.view.usage)]
      .filter(([name]) => !asked.some(([each]) => each === name));
    const query = new URLSearchParams([...mine, ...asked, ["limit", rowsMax],
      ...(parameters.after ? [["after", parameters.after]] : [])]);
    return { page: await get(`/requests?${query}`), asked, parameters };
  },

  render({ page, asked, parameters }, _, caller) {
    return card("Requests", "the ledger's own rows, the newest first",
      asked.length === 0 ? null : [
        ...asked.map(([name, value]) => element("span", { class: "badge idle breakable" },
          `${name}: ${named(page, name, value)}`)),
        to("Show all", "requests")],
      table("Settled requests", [
        { label: "Request", title: true, value: (row) => [
          caller.is_operator
            ? to(element("span", { class: "mono breakable" }, row.id), "explain", { request: row.id })
            : element("span", { class: "mono breakable" }, row.id),
          element("div", { class: "muted small" }, moment(row.settle_time))] },
        { label: "Model", value: (row) => row.model },
        { label: "Key", value: (row) => [row.key, element("div", { class: "muted small" },
          `${row.tenant} / ${row.project}`)] },
        { label: "Outcome", value: (row) => badge(row.outcome, toneOfOutcome[row.outcome]) },
        { label: "Prompt", number: true, value: (row) => count(row.prompt_tokens) },
        { label: "Cached", number: true, value: (row) => count(row.cached_tokens) },
        { label: "Completion", number: true, value: (row) => count(row.completion_tokens) },
        { label: "Cost", number: true, value: (row) => (row.cost
          ? element("span", { title: `$${row.cost.usd} by ${row.price_book}` },
            dollars(row.cost.nanousd)) : badge("unrated", "warn")) },
        { label: "Counted by", value: (row) => (row.counted_by === "engine" ? "engine" : "gateway") },
      ], page.items, "No requests here."),
      pager("requests", parameters, parameters.after, page.next));
  },
};

/** A filter's value by name where a row has both. */
function named(page, name, value) {
  const ids = { tenant: "tenant_id", key: "key_id", replica: "replica_id" };
  const row = page.items.find((item) => item[ids[name]] === value);
  return row?.[name] ?? value;
}
