// Why a request went where it went: what the router saw, what it left out, what each place cost.

import { get, list } from "./api.js";
import { badge, card, element, facts, meter, table, to } from "./dom.js";
import { age, count } from "./format.js";

export const explain = {
  title: "Explain", group: "Operate", needs: "operator",

  async load(caller, { request }) {
    if (!request) return { request: "", newest: (await get("/requests?limit=10")).items };
    try {
      const [found, replicas] = await Promise.all([
        get(`/explain/route/${encodeURIComponent(request)}`), list("/replicas"),
      ]);
      return { request, found, names: new Map(replicas.map(({ id, name }) => [id, name])) };
    } catch (error) {
      if (error.status !== 404) throw error;
      return { request, problem: error.message };
    }
  },

  render({ request, found, names, problem, newest }) {
    return [
      card("Why did a request go there?", "its id is the x-request-id header of the answer", null,
        element("form", {
          class: "ask-bar", submit: (event) => {
            event.preventDefault();
            const id = document.getElementById("explain-request").value.trim();
            location.hash = `#/explain?${new URLSearchParams({ request: id })}`;
          },
        },
        element("label", { for: "explain-request", class: "hidden-label" }, "Request id"),
        element("input", { id: "explain-request", value: request, placeholder: "req_…",
          required: true, spellcheck: "false", autocomplete: "off" }),
        element("button", { class: "primary", type: "submit" }, "Explain"))),
      problem ? element("section", { class: "card" }, element("p", { class: "muted" }, problem))
        : null,
      ...(found?.decisions ?? []).map((decision) => decisionCard(decision, names)),
      newest ? card("The newest", "a gateway remembers its last decisions", to("All", "requests"),
        table("The newest requests", [
          { label: "Request", title: true, value: (row) => to(element("span",
            { class: "mono breakable" }, row.id), "explain", { request: row.id }) },
          { label: "Model", value: (row) => row.model },
          { label: "Settled", value: (row) => age(row.settle_time) },
        ], newest, "No requests yet.")) : null,
    ].filter(Boolean);
  },
};

const places = { zone: "in this zone", region: "in this region", anywhere: "in any region" };

/** The name of a part of the cost as a column's head: `prefix_credit_s` is "Prefix credit, s". */
function termLabel(name) {
  const words = name.replace(/_s$/, ", s").replaceAll("_", " ").replace(/^kv\b/, "KV");
  return words[0].toUpperCase() + words.slice(1);
}

/** One choice; a replica that is gone goes by its id. */
function decisionCard(decision, names) {
  const nameOf = (row) => names.get(row.endpoint_id) ?? row.endpoint_id;
  const leftOut = Object.entries(decision.filtered);
  const terms = [...new Set(decision.candidates.flatMap((each) => Object.keys(each.terms)))];
  return card(`Attempt ${decision.attempt}`, `policy ${decision.policy}`, null,
    facts([
      ["Chosen because", decision.reason],
      ["Prompt", `about ${count(decision.prompt_tokens)} tokens`],
      ["Replicas", `${count(decision.endpoint_count)} ${places[decision.tier] ?? decision.tier}`],
      ["Left out", leftOut.map(([why, number]) => `${number} ${why}`).join(", ") || "none"],
    ]),
    table("Candidates", [
      { label: "Replica", title: true, value: (row) => [
        element("span", { class: "breakable" }, nameOf(row)),
        row.is_chosen ? [" ", badge("chosen", "good")] : null] },
      { label: "Cost, s", number: true, value: (row) => row.cost.toPrecision(3) },
      ...terms.map((name) => ({ label: termLabel(name), number: true,
        value: (row) => (row.terms[name] ?? 0).toPrecision(3) })),
      { label: "In cache", number: true, value: (row) => `${count(row.matched_tokens)} tokens` },
      { label: "In flight", number: true, value: (row) => count(row.in_flight_requests) },
      { label: "KV", value: (row) => element("span", { class: "near" },
        meter(row.kv_share, `KV cache of ${nameOf(row)} in use`),
        `${Math.round(row.kv_share * 100)}%`) },
    ], decision.candidates, "No replica could take it."));
}
