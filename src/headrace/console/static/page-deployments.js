// Desired against observed: deployments, and the replicas that run for them.

import { get, list, scale } from "./api.js";
import { badge, element, meter, table } from "./dom.js";
import { age, count, short } from "./format.js";
import { reasons } from "./page-overview.js";
import { deploymentState, toneOfReplica } from "./states.js";

const replicasMax = 1000;

export const deployments = {
  title: "Deployments", group: "Operate", needs: "operator",

  async load() {
    const [wanted, live] = await Promise.all([
      list("/deployments"), get("/live").catch(() => null),
    ]);
    return { wanted, loads: live?.loads ?? [] };
  },

  render({ wanted, loads }, refresh) {
    const loadOf = (row) => loads.find((load) => load.deployment_id === row.id);
    return [
      element("section", { class: "card" },
        element("div", { class: "card-head" }, element("h2", {}, "Deployments"),
          element("span", { class: "muted small" }, "what is wanted, and why it differs")),
        table("Deployments", [
          { label: "Deployment", title: true, value: (row) => element("strong", {}, row.name) },
          { label: "Model", value: (row) => `${row.model} @ ${row.version}` },
          { label: "Engine", value: (row) => row.engine },
          { label: "Running", number: true, value: (row) => count(loadOf(row)?.running ?? 0) },
          { label: "Queued tokens", number: true, value: (row) =>
            short(loadOf(row)?.queued_tokens ?? 0) },
          { label: "KV in use", value: (row) => share(loadOf(row)?.kv_share ?? 0, row.name) },
          { label: "Ready", number: true, value: (row) => count(row.ready_replicas) },
          { label: "Wanted", value: (row) => scaler(row, refresh) },
          { label: "State", value: (row) => {
            const [word, tone] = deploymentState(row);
            return [badge(word, tone), reasons(row), notes(row)];
          } },
        ], wanted, ["Nothing is deployed yet.",
          element("code", {}, "headrace deployments create MODEL")])),
    ];
  },
};

export const replicas = {
  title: "Replicas", group: "Operate", needs: "operator",
  load: () => list("/replicas"),

  render(all) {
    return [
      element("section", { class: "card" },
        element("div", { class: "card-head" }, element("h2", {}, "Replicas"),
          element("span", { class: "muted small" }, "active: a real token came back")),
        table("Replicas", [
          { label: "Replica", title: true, value: (row) => element("strong", {}, row.name) },
          { label: "Deployment", value: (row) => row.deployment },
          { label: "State", value: (row) => [badge(row.state, toneOfReplica[row.state]),
            progress(row)] },
          { label: "Address", value: (row) => element("span", { class: "mono" },
            row.address.replace(/^https?:\/\//, "") || "–") },
          { label: "Launches", number: true, value: (row) => count(row.attempts) },
          { label: "Created", value: (row) => age(row.create_time) },
          { label: "Detail", value: (row) => element("span", { class: "muted" },
            row.detail || "–") },
        ], all, "No replicas run.")),
    ];
  },
};

function progress(replica) {
  if (replica.progress === null || replica.progress >= 1) return null;
  return [" ", element("progress", {
    value: replica.progress, max: 1, "aria-label": `${replica.name} loading`,
  })];
}

function scaler(deployment, refresh) {
  const change = async (difference) => {
    await scale(deployment.id, deployment.replicas + difference);
    await refresh();
  };
  return element("span", { class: "scaler" },
    element("button", {
      class: "step", type: "button", id: `less-${deployment.id}`,
      "aria-label": `One replica less of ${deployment.name}`,
      disabled: deployment.replicas === 0, click: () => change(-1),
    }, "−"),
    element("output", {}, count(deployment.replicas)),
    element("button", {
      class: "step", type: "button", id: `more-${deployment.id}`,
      "aria-label": `One replica more of ${deployment.name}`,
      disabled: deployment.replicas >= replicasMax, click: () => change(1),
    }, "+"));
}

function share(value, name) {
  return element("span", { class: "near" }, meter(value, `KV cache of ${name} in use`),
    `${Math.round(value * 100)}%`);
}

/** What its rollout and its autoscaling are at. */
function notes(row) {
  const lines = [
    row.rollout_state && row.rollout_state !== "idle"
      ? `rollout to generation ${row.generation}: ${row.rollout_state}` : "",
    row.scale_reason ? `scaled: ${row.scale_reason}` : "",
  ].filter(Boolean);
  return lines.length === 0 ? null
    : element("ul", { class: "reasons" }, lines.map((line) => element("li", {}, line)));
}
