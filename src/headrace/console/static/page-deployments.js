// Desired against observed: deployments, and the replicas that run for them.

import { change, get, list, scale } from "./api.js";
import { ask } from "./dialog.js";
import { badge, button, card, element, meter, table, to } from "./dom.js";
import { age, count, short } from "./format.js";
import { liveChart } from "./live-chart.js";
import { reasons } from "./page-overview.js";
import { deploymentState, toneOfReplica } from "./states.js";

const replicasMax = 1000;

export const deployments = {
  title: "Deployments", group: "Operate", needs: "operator", ticks: true,

  async load() {
    const [wanted, live, models] = await Promise.all([
      list("/deployments"), get("/live").catch(() => null), list("/models"),
    ]);
    return { wanted, loads: live?.loads ?? [], points: live?.points ?? [], models };
  },

  render({ wanted, loads, points, models }, refresh) {
    const loadOf = (row) => loads.find((load) => load.deployment_id === row.id);
    return [
      card("Deployments", "what is wanted, and why it differs",
        button("Deploy a model", () => deploy(models, refresh), { id: "deploy", look: "primary" }),
        table("Deployments", [
          { label: "Deployment", title: true, value: (row) =>
            to(element("strong", {}, row.name), "deployment", { id: row.id }) },
          { label: "Model", value: (row) => `${row.model} @ ${row.version}` },
          { label: "Engine", value: (row) => [row.engine, adapterNote(row.loras)] },
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
      card("Queue", "requests that run, and that wait because every replica is full", null,
        liveChart("Requests that run and wait", points.map((point) => point.time_s), [
          { label: "running", values: points.map((point) => point.running), colour: "series-0" },
          { label: "waiting", values: points.map((point) => point.waiting), colour: "series-1" },
        ], (value) => (Number.isInteger(value) ? count(value) : ""))),
    ];
  },
};

/** How a replica is shown, wherever it is. */
export const replicaColumns = [
  { label: "Replica", title: true, value: (row) =>
    to(element("strong", {}, row.name), "requests", { replica: row.id }) },
  { label: "Deployment", value: (row) => to(row.deployment, "deployment", { id: row.deployment_id }) },
  { label: "State", value: (row) => [badge(row.state, toneOfReplica[row.state]), progress(row)] },
  { label: "Generation", number: true, value: (row) => count(row.generation) },
  { label: "Node", value: (row) => row.node ? to(row.node, "nodes") : "–" },
  { label: "Address", value: (row) => element("span", { class: "mono" },
    row.address.replace(/^https?:\/\//, "") || "–") },
  { label: "Launches", number: true, value: (row) => count(row.attempts) },
  { label: "Created", value: (row) => age(row.create_time) },
  { label: "Detail", value: (row) => element("span", { class: "muted" }, row.detail || "–") },
];

export const replicas = {
  title: "Replicas", group: "Operate", needs: "operator", ticks: true,
  load: () => list("/replicas"),

  render(all) {
    return card("Replicas", "active: a real token came back; a name leads to its requests", null,
      table("Replicas", replicaColumns, all, "No replicas run."));
  },
};

/** Ask for replicas of a model that is there, or of a new one. */
function deploy(models, refresh) {
  ask("Deploy a model", [
    { name: "model", label: "Model", options: [...models.map((item) => [item.name, item.name]),
      ["", "another one:"]] },
    { name: "name", label: "Name of the new model", placeholder: "as customers will call it" },
    { name: "source", label: "Its source", wide: true, placeholder: "a catalogue name, hf://owner/repo/file.gguf or a path",
      hint: "headrace models catalogue lists the names" },
    { name: "replicas", label: "Replicas", type: "number", min: 0, value: 1, required: true },
    { name: "threads", label: "Threads", type: "number", min: 1, hint: "empty: as the machine has" },
    { name: "arguments", label: "Arguments of the engine", wide: true,
      placeholder: "for example --kv-tokens 32768" },
    lorasField({}),
  ], "Deploy", async (values) => {
    let model = values.model;
    if (!model) {
      model = values.name || values.source;
      await change("POST", "/models", { name: model, source: values.source });
    }
    await change("POST", "/deployments", {
      model, replicas: Number(values.replicas),
      threads: values.threads ? Number(values.threads) : null,
      engine_arguments: values.arguments.split(/\s+/).filter(Boolean),
      loras: lorasOf(values.loras),
    });
    await refresh();
  }, { text: "The control plane fetches its files, starts it and tries it before anybody is sent there." });
}

/** The field of a form for LoRA adapters, filled with what holds now. */
export const lorasField = (loras) => ({
  name: "loras", label: "LoRA adapters", wide: true, lines: 2, placeholder: "support = /srv/adapters/support",
  value: Object.entries(loras).map(([name, source]) => `${name} = ${source}`).join("\n"),
  hint: "a line each: name = its directory where replicas run; callers ask for MODEL:NAME",
});

/** What such a field says, as the API takes it. */
export function lorasOf(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const [name, ...source] = line.split("=");
    if (source.length === 0) throw new Error(`“${line}”: write it as NAME = SOURCE.`);
    return { name: name.trim(), source: source.join("=").trim() };
  });
}

function progress(replica) {
  if (replica.progress === null || replica.progress >= 1) return null;
  return [" ", element("progress", {
    value: replica.progress, max: 1, "aria-label": `${replica.name} loading`,
  })];
}

function scaler(deployment, refresh) {
  const by = async (difference) => {
    await scale(deployment.id, deployment.replicas + difference);
    await refresh();
  };
  return element("span", { class: "scaler" },
    element("button", {
      class: "step", type: "button", id: `less-${deployment.id}`,
      "aria-label": `One replica less of ${deployment.name}`,
      disabled: deployment.replicas === 0, click: () => by(-1),
    }, "−"),
    element("output", {}, count(deployment.replicas)),
    element("button", {
      class: "step", type: "button", id: `more-${deployment.id}`,
      "aria-label": `One replica more of ${deployment.name}`,
      disabled: deployment.replicas >= replicasMax, click: () => by(1),
    }, "+"));
}

function share(value, name) {
  return element("span", { class: "near" }, meter(value, `KV cache of ${name} in use`),
    `${Math.round(value * 100)}%`);
}

function adapterNote(loras) {
  const number = Object.keys(loras).length;
  return number === 0 ? null : element("div", { class: "muted small" },
    `${number} ${number === 1 ? "adapter" : "adapters"}`);
}

/** What its rollout and its autoscaling are at. */
function notes(row) {
  const lines = [
    row.rollout_state && row.rollout_state !== "idle"
      ? `rollout to generation ${row.generation}: ${row.rollout_state}` : "",
    row.rolled_back ? `rolled back, ${row.rolled_back}` : "",
    row.scale_reason ? `scaled: ${row.scale_reason}` : "",
  ].filter(Boolean);
  return lines.length === 0 ? null
    : element("ul", { class: "reasons" }, lines.map((line) => element("li", {}, line)));
}
