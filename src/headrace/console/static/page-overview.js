// The first page: is it up, what does it do now, what does it earn.

import { get, list } from "./api.js";
import { stackedBars } from "./chart.js";
import { badge, card, element, table, to } from "./dom.js";
import { count, dollars, lastDays, seconds, share, short } from "./format.js";
import { goodputTable } from "./goodput.js";
import { liveChart } from "./live-chart.js";
import { deploymentState } from "./states.js";

const days = 14;
const longValue = 8; // characters of a figure that is drawn smaller

export const overview = {
  title: "Overview",
  group: "", ticks: true,

  async load(caller) {
    const span = lastDays(days);
    const usage = get(`/usage?by=model,day&since=${span[0]}&${caller.view.usage}`);
    if (!caller.is_operator) {
      const [used, tenants] = await Promise.all([usage, list("/tenants")]);
      return { usage: used, tenants, span };
    }
    const today = `first_day=${span.at(-1)}&last_day=${span.at(-1)}`;
    const [used, live, goodput, deployments, replicas, nodes, costs] = await Promise.all([
      usage, get("/live").catch(() => null), get("/goodput").catch(() => ({ items: [] })),
      list("/deployments"), list("/replicas"), list("/nodes").catch(() => []),
      get(`/costs?${today}`).catch(() => null),
    ]);
    return { usage: used, live, goodput: goodput.items, deployments, replicas, span,
      nodes, costs };
  },

  render(data, _, caller) {
    return caller.is_operator ? forOperators(data) : forCustomers(data);
  },
};

function forOperators({ usage, live, goodput, deployments, replicas, nodes, span, costs }) {
  const today = sums(usage, span);
  const wanted = deployments.reduce((total, item) => total + item.replicas, 0);
  const ready = deployments.reduce((total, item) => total + item.ready_replicas, 0);
  const points = live?.points ?? [];
  const last = points.at(-1);
  const times = points.map((point) => point.time_s);
  const field = (name) => points.map((point) => point[name]);
  return [
    statusLine(live),
    element("dl", { class: "tiles" },
      tile("Requests", last ? `${rate(last.requests_per_s)}/s` : "–",
        last ? `${count(last.running)} running, ${count(last.waiting)} waiting` : "no samples yet"),
      tile("Tokens", last ? `${rate(last.tokens_per_s)}/s` : "–",
        last ? `${rate(last.completion_tokens_per_s)}/s of them written` : "in and out"),
      tile("First token, p50", seconds(last?.first_token_p50_s),
        `p99 ${seconds(last?.first_token_p99_s)}, last minute`),
      tile("Goodput", to(goodShare(goodput), "models"), "of the last hour, by models' objectives"),
      tile("Replicas ready", to(`${ready} / ${wanted}`, "replicas"),
        [starting(replicas), devicesNote(nodes)]),
      ...todayTiles(today, span, costs)),
    element("div", { class: "columns even" },
      card("Throughput", "tokens a second, the last minutes", null,
        liveChart("Tokens a second", times, [
          { label: "all tokens", values: field("tokens_per_s"), colour: "series-0" },
          { label: "written", values: field("completion_tokens_per_s"), colour: "series-1" },
        ], rate)),
      card("Time to first token", "over a minute each", null,
        liveChart("Time to first token", times, [
          { label: "p50", values: field("first_token_p50_s"), colour: "series-2" },
          { label: "p99", values: field("first_token_p99_s"), colour: "series-4" },
        ], (value) => `${rate(value)} s`))),
    card("Service levels", "goodput by model, and how fast its error budget burns",
      to("Models", "models"), goodputTable(goodput)),
    element("div", { class: "columns even" },
      card("Deployments", "observed and wanted", null,
        table("Deployments and their replicas", [
          { label: "Deployment", title: true, value: (row) =>
            to(element("strong", {}, row.name), "deployment", { id: row.id }) },
          { label: "Ready", number: true, value: (row) => `${row.ready_replicas} / ${row.replicas}` },
          { label: "State", value: (row) => state(row) },
        ], deployments, ["Nothing is deployed yet.", element("code", {},
          "headrace deployments create MODEL")])),
      tokensByModel(usage, span)),
  ];
}

function forCustomers({ usage, tenants, span }) {
  const today = sums(usage, span);
  return [
    element("dl", { class: "tiles" },
      ...tenants.map((tenant) => tile(`Balance of ${tenant.name}`,
        to(dollars(tenant.balance.nanousd), "wallets"), tenant.postpaid ? "postpaid" : "prepaid")),
      ...todayTiles(today, span)),
    tokensByModel(usage, span),
  ];
}

function todayTiles(today, span, costs = null) {
  const since = span.at(-1);
  return [
    tile("Requests today", to(count(today.requests), "requests", { since }), today.failed
      ? to(`${count(today.failed)} failed`, "requests", { since, outcome: "failed" }) : "none failed"),
    tile("Tokens today", to(short(today.prompt + today.completion), "usage"),
      `${short(today.prompt)} in, ${short(today.completion)} out`),
    tile(costs ? "Revenue today" : "Cost today", to(dollars(today.cost), "requests", { since }),
      costs ? [to(`margin ${dollars(costs.total.margin.nanousd)}`, "costs"), " after devices"]
        : "UTC, from the ledger"),
  ];
}

/** Devices in use of those there are; nothing where a cluster has them. */
function devicesNote(nodes) {
  const devices = nodes.flatMap((node) => node.devices);
  if (devices.length === 0) return null;
  const used = devices.filter((device) => device.replicas.length > 0).length;
  return ["; ", to(`${used} of ${count(devices.length)} devices in use`, "nodes")];
}

/** The share of good requests of all models in the last hour. */
function goodShare(items) {
  const sum = (field) => items.reduce((total, item) => total + item.windows[1][field], 0);
  const judged = sum("requests");
  return judged === 0 ? "–" : share(sum("good_requests") / judged);
}

function tokensByModel(usage, span) {
  return card("Tokens by model", `last ${days} days`, null,
    stackedBars(`Tokens by model and day, last ${days} days`, span,
      usage.items.map((item) => ({
        day: item.day, name: item.model, value: item.prompt_tokens + item.completion_tokens,
      })), short));
}

function statusLine(live) {
  const age = live?.last_success_age_s;
  const text = !live ? "No gateway is followed"
    : age == null ? "No request has succeeded yet"
      : `A request succeeded ${Math.round(age)} s ago`;
  return element("p", { class: "status-line" },
    badge(live?.status === "serving" ? "Serving" : "Quiet",
      live?.status === "serving" ? "good" : "warn"), element("span", { class: "muted" }, text));
}

function sums(usage, span) {
  const today = usage.items.filter((item) => item.day === span.at(-1));
  const sum = (field) => today.reduce((total, item) => total + field(item), 0);
  return {
    requests: sum((item) => item.requests), failed: sum((item) => item.failed),
    prompt: sum((item) => item.prompt_tokens), completion: sum((item) => item.completion_tokens),
    cost: sum((item) => item.cost.nanousd),
  };
}

/** A rate in few digits. */
function rate(value) {
  return value >= 100 ? short(Math.round(value)) : value >= 10 ? value.toFixed(0)
    : Number(value.toFixed(2)).toString();
}

/** A figure with its name and a note. */
export function tile(label, value, note) {
  const text = value instanceof Node ? value.textContent : String(value);
  return element("div", { class: "card tile" }, element("dt", {}, label),
    element("dd", { class: text.length > longValue ? "long" : null }, value,
      element("div", { class: "note" }, note)));
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
