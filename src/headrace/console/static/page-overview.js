// The first page: is it up, what does it do, what does it earn.

import { get, list } from "./api.js";
import { stackedBars } from "./chart.js";
import { badge, element, table } from "./dom.js";
import { count, dollars, lastDays, short } from "./format.js";
import { deploymentState } from "./states.js";
import { quickStart } from "./page-start.js";

const days = 14;

export const overview = {
  title: "Overview",

  async load() {
    const span = lastDays(days);
    const [status, deployments, replicas, models, usage] = await Promise.all([
      get("/status"), list("/deployments"), list("/replicas"), list("/models"),
      get(`/usage?by=model,day&since=${span[0]}`),
    ]);
    return { status, deployments, replicas, models, usage, span };
  },

  render({ status, deployments, replicas, models, usage, span }) {
    const today = usage.items.filter((item) => item.day === span.at(-1));
    const sum = (field) => today.reduce((total, item) => total + field(item), 0);
    const failed = sum((item) => item.failed);
    const wanted = deployments.reduce((total, item) => total + item.replicas, 0);
    const ready = deployments.reduce((total, item) => total + item.ready_replicas, 0);
    return [
      element("dl", { class: "tiles" },
        tile("Replicas ready", `${ready} / ${wanted}`, starting(replicas)),
        tile("Requests today", count(sum((item) => item.requests)),
          failed ? `${count(failed)} failed` : "none failed"),
        tile("Tokens today",
          short(sum((item) => item.prompt_tokens + item.completion_tokens)),
          `${short(sum((item) => item.prompt_tokens))} in, `
          + `${short(sum((item) => item.completion_tokens))} out`),
        tile("Cost today", dollars(sum((item) => item.cost.nanousd)), "UTC, from the ledger")),
      element("div", { class: "columns" },
        element("section", { class: "card" },
          element("div", { class: "card-head" },
            element("h2", {}, "Tokens by model"),
            element("span", { class: "muted small" }, `last ${days} days`)),
          stackedBars(`Tokens by model and day, last ${days} days`, span,
            usage.items.map((item) => ({
              day: item.day, name: item.model, value: item.prompt_tokens + item.completion_tokens,
            })), short)),
        element("section", { class: "card" },
          element("h2", {}, "Deployments"),
          table("Deployments and their replicas", [
            { label: "Deployment", title: true, value: (row) => element("strong", {}, row.name) },
            { label: "Ready", number: true, value: (row) => `${row.ready_replicas} / ${row.replicas}` },
            { label: "State", value: (row) => state(row) },
          ], deployments, ["Nothing is deployed yet.", element("code", {},
            "headrace deployments create MODEL")]))),
      element("section", { class: "card stack" },
        element("h2", {}, "Quick start"), quickStart(status, models)),
    ];
  },
};

function tile(label, value, note) {
  return element("div", { class: "card tile" }, element("dt", {}, label),
    element("dd", {}, value, element("div", { class: "note" }, note)));
}

function starting(replicas) {
  const failed = replicas.filter((replica) => replica.state === "failed").length;
  const loading = replicas.filter((replica) =>
    ["creating", "loading"].includes(replica.state)).length;
  const parts = [failed ? `${failed} failed` : "", loading ? `${loading} starting` : ""];
  return parts.filter(Boolean).join(", ") || "as wanted";
}

function state(deployment) {
  const [word, tone] = deploymentState(deployment);
  return [badge(word, tone), reasons(deployment)];
}

/** Why a deployment is not ready, a line each. */
export function reasons(deployment) {
  if (deployment.reasons.length === 0) return null;
  return element("ul", { class: "reasons" },
    deployment.reasons.map((reason) => element("li", {}, reason)));
}
