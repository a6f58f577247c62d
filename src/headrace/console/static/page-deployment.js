// One deployment: desired against observed, its rollout, why it has so many replicas, and them.

import { change, get, list } from "./api.js";
import { ask } from "./dialog.js";
import { badge, button, card, element, facts, meter, table, to } from "./dom.js";
import { age, count } from "./format.js";
import { lorasField, lorasOf, replicaColumns } from "./page-deployments.js";
import { reasons } from "./page-overview.js";
import { deploymentState } from "./states.js";

const optional = (path) => get(path).catch(() => null);

export const deployment = {
  title: "Deployment", below: "deployments", needs: "operator", ticks: true,
  heading: ({ item }) => item?.name,

  async load(caller, { id }) {
    const item = await get(`/deployments/${id}`);
    const [rollout, scaling, placement, replicas] = await Promise.all([
      get(`/rollouts/${id}`), item.autoscaling ? optional(`/explain/scaling/${id}`) : null,
      optional(`/explain/placement/${id}`), list(`/replicas?deployment=${id}`),
    ]);
    return { item, rollout, scaling, placement, replicas };
  },

  render({ item, rollout, scaling, placement, replicas }, refresh) {
    const [word, tone] = deploymentState(item);
    return [
      card("Wanted and observed", `generation ${item.generation}, made ${age(item.create_time)}`, [
        button("Change", () => edit(item, refresh), { id: "change-deployment" }),
        button("Delete", () => remove(item), { id: "delete-deployment" })],
      facts([
        ["State", badge(word, tone)],
        ["Model", `${item.model} @ ${item.version}`],
        ["Engine", item.engine],
        ["Replicas", `${count(item.ready_replicas)} ready of ${count(item.replicas)} wanted`],
        ["Threads", item.threads],
        ["Arguments", item.engine_arguments.length > 0
          ? element("code", {}, item.engine_arguments.join(" ")) : null],
        ["Last scaled", item.scale_reason],
      ]), reasons(item)),
      adaptersCard(item, refresh),
      rolloutCard(item, rollout, refresh),
      scaling ? scalingCard(scaling) : item.autoscaling ? null
        : card("Scaling", `a fixed number of replicas: ${item.replicas}`, null,
          element("p", { class: "muted" }, "Give it bounds with ",
            element("code", {}, `headrace deployments update ${item.name} --min 1 --max 4`), ".")),
      placement ? placementCard(placement) : null,
      card("Replicas", "active: a real token came back", to("All replicas", "replicas"),
        table("Replicas", replicaColumns, replicas, "No replicas run.")),
    ];
  },
};

function adaptersCard(item, refresh) {
  const loras = Object.entries(item.loras);
  return card("LoRA adapters", "small files on top of the model; all share its replicas",
    button("Change", () => editAdapters(item, refresh),
      { id: "change-adapters", label: "Change the adapters" }),
    table("LoRA adapters", [
      { label: "Adapter", title: true, value: ([name]) => element("strong", {}, name) },
      { label: "Callers ask for", value: ([name]) => element("code", {}, `${item.model}:${name}`) },
      { label: "Source", value: ([, source]) => element("span", { class: "mono breakable" }, source) },
    ], loras, "None: the model as it is."));
}

function editAdapters(item, refresh) {
  ask(`Adapters of ${item.name}`, [lorasField(item.loras)], "Change", async ({ loras }) => {
    await change("PATCH", `/deployments/${item.id}`, { loras: lorasOf(loras) });
    await refresh();
  }, { text: "Replicas with these are rolled out by the deployment's policy; no request is lost." });
}

function rolloutCard(item, rollout, refresh) {
  const act = (action) => async () => {
    await change("POST", `/rollouts/${item.id}`, { action });
    await refresh();
  };
  const isUnderWay = rollout.state !== "idle";
  const ended = rollout.last_generation === null ? "no rollout yet"
    : `generation ${rollout.last_generation} ${rollout.last_succeeded ? "succeeded" : "was rolled back"}`
      + `${rollout.last_reason ? `: ${rollout.last_reason}` : ""}`;
  return card("Rollout", isUnderWay ? `${rollout.strategy}, ${rollout.state}` : ended, [
    rollout.state === "progressing" ? button("Pause", act("pause"), { id: "pause-rollout" }) : null,
    rollout.state === "paused" ? button("Resume", act("resume"), { id: "resume-rollout" }) : null,
    item.generation > 1 ? button("Undo", () => ask(`Go back to the generation before?`, [],
      "Go back", act("undo"), { danger: true }), { id: "undo-rollout" }) : null],
  rollout.weight === null ? null : element("div", { class: "near" },
    meter(rollout.weight / 100, "Share of the new generation", false),
    `${rollout.weight}% of the requests to the new generation`),
  table("Generations", [
    { label: "Generation", title: true, value: (row) => [element("strong", {}, count(row.generation)),
      row.generation === item.generation ? [" ", badge("wanted", "good")] : null] },
    { label: "Version", value: (row) => row.version || "–" },
    { label: "Active", number: true, value: (row) => `${row.active} / ${row.replicas}` },
    { label: "Progress", value: (row) => element("progress", { max: Math.max(1, row.replicas),
      value: row.active, "aria-label": `Replicas of generation ${row.generation} that are active` }) },
  ], rollout.generations, "Nothing runs."));
}

function scalingCard({ sample, proposal, granted, before }) {
  const needs = Object.entries(proposal.needs);
  return card("Scaling", `between ${proposal.min} and ${proposal.max} replicas`, null,
    facts([
      ["Arrives", `${count(sample.tokens_per_s)} tokens/s`],
      ["Forecast", `${count(proposal.forecast_tokens_per_s)} tokens/s in ${Math.round(proposal.lead_s)} s`],
      ["A replica does", proposal.capacity_tokens_per_s === null ? "not known yet"
        : `${count(proposal.capacity_tokens_per_s)} tokens/s`],
      ["Waits", `${count(sample.waiting_requests)} requests`],
      ["In flight", `${count(sample.in_flight_requests)} requests, KV ${Math.round(sample.kv_share * 100)}%`],
      ["Wanted", `${proposal.replicas}, because: ${proposal.reason}`],
      ["Granted", `${granted}, was ${before}`],
    ]),
    table("What each target asks for", [
      { label: "Target", title: true, value: ([name]) => name.replaceAll("_", " ") },
      { label: "Replicas", number: true, value: ([, value]) => value.toFixed(2) },
    ], needs, "No target asks for any."));
}

/** Where one more replica could go, and why not elsewhere. */
function placementCard({ nodes, priority, frozen_reason: frozen }) {
  return card("Placement", `where one more would go; priority ${priority}`, null,
    frozen ? element("p", { class: "problem" }, `Nothing is moved: ${frozen}`) : null,
    table("Nodes", [
      { label: "Node", title: true, value: (row) => element("strong", {}, row.node) },
      { label: "Fits", value: (row) => badge(row.reason ? "no" : "fits", row.reason ? "idle" : "good") },
      { label: "Devices", value: (row) => row.devices.join(", ") || "–" },
      { label: "Score", number: true, value: (row) => (row.reason ? "–" : row.score.toFixed(2)) },
      { label: "Why", value: (row) => row.reason || row.terms.map((term) =>
        `${term.name.replaceAll("_", " ")} ${term.value.toFixed(2)}`).join(", ") || "–" },
    ], nodes, "No node was looked at."));
}

function edit(item, refresh) {
  ask(`Change ${item.name}`, [
    { name: "replicas", label: "Replicas", type: "number", min: 0, value: item.replicas, required: true },
    { name: "version", label: "Version", value: item.version, required: true },
    { name: "threads", label: "Threads", type: "number", min: 1, value: item.threads,
      hint: "empty: as the machine has" },
    { name: "arguments", label: "Arguments of the engine", value: item.engine_arguments.join(" "), wide: true },
  ], "Change", async (values) => {
    await change("PATCH", `/deployments/${item.id}`, {
      replicas: Number(values.replicas),
      ...(values.version === item.version ? {} : { version: values.version }),
      threads: values.threads ? Number(values.threads) : null,
      engine_arguments: values.arguments.split(/\s+/).filter(Boolean),
    });
    await refresh();
  }, { text: "Another look of its replicas is rolled out by its policy; no request is lost." });
}

function remove(item) {
  ask(`Delete ${item.name}?`, [], "Delete", async () => {
    await change("DELETE", `/deployments/${item.id}`);
    location.hash = "#/deployments";
  }, { danger: true, text: "Its replicas finish their work and stop." });
}
