// Machines: what each has, how its devices are joined, what runs where, and whether more may come.

import { change, wholeList } from "./api.js";
import { ask, reveal } from "./dialog.js";
import { badge, button, card, element, facts } from "./dom.js";
import { bytes, count } from "./format.js";

const toneOfNode = { ready: "good", joining: "warn", lost: "bad" };

export const nodes = {
  title: "Nodes", group: "Operate", needs: "operator", ticks: true,

  load: () => wholeList("/nodes").catch((error) => {
    if (error.status !== 404) throw error;
    return { items: [], frozen_reason: null };
  }),

  render({ items, frozen_reason: frozen }, refresh) {
    const devices = items.flatMap((node) => node.devices);
    const used = devices.filter((device) => device.replicas.length > 0).length;
    return [
      card("Nodes", `${count(used)} of ${count(devices.length)} devices in use`,
        button("Add node", () => add(refresh), { id: "add-node", look: "primary" }),
        frozen ? element("p", { class: "problem" }, `Nothing is moved: ${frozen}`) : null,
        items.length === 0 ? element("div", { class: "empty" },
          "No nodes: the launcher's own cluster places replicas.") : null),
      ...items.map((node) => nodeCard(node, refresh)),
    ];
  },
};

function nodeCard(node, refresh) {
  const closed = node.closed_reason;
  return card(node.name, [node.region, node.zone].filter(Boolean).join(" / ") || "no region said", [
    button(node.cordoned ? "Uncordon" : "Cordon", set(node, { cordoned: !node.cordoned }, refresh),
      { id: `cordon-${node.id}`, label: `${node.cordoned ? "Uncordon" : "Cordon"} ${node.name}` }),
    button(node.draining ? "Stop draining" : "Drain", () => (node.draining
      ? set(node, { draining: false }, refresh)()
      : ask(`Drain ${node.name}?`, [], "Drain", set(node, { draining: true }, refresh),
        { danger: true, text: "What runs there moves elsewhere; no request is lost." })),
    { id: `drain-${node.id}`, label: `Drain ${node.name}` })],
  facts([
    ["State", [badge(node.state, toneOfNode[node.state]),
      closed && node.state === "ready" ? [" ", badge(closed, "warn")] : null]],
    ["Last heard of", node.silent_s === null ? null : `${Math.round(node.silent_s)} s ago`],
    ["Processors", node.cpu_count ? count(node.cpu_count) : null],
    ["Memory", node.memory_bytes ? bytes(node.memory_bytes) : null],
    ["Address", node.address],
    ["Weight cache", node.cache_bytes === null ? null : [bytes(node.cache_bytes),
      node.cache_bytes_max === null ? null : ` of ${bytes(node.cache_bytes_max)}`]],
    ["Labels", Object.entries(node.labels).map(([name, value]) => `${name}=${value}`).join(", ")],
  ]),
  topology(node.devices));
}

/** The devices as they are joined: an island is a group, and so is a NUMA node without one. */
function topology(devices) {
  if (devices.length === 0) return element("p", { class: "muted" }, "No devices were reported.");
  const groups = Map.groupBy(devices, (device) =>
    (device.island ? `island ${device.island}` : `NUMA node ${device.numa}`));
  return element("div", { class: "islands" }, [...groups].map(([name, members]) =>
    element("section", { class: "island", "aria-label": name },
      element("div", { class: "muted small" }, name),
      element("ul", { class: "devices" }, members.map((device) => element("li", {
        class: device.replicas.length > 0 ? "device busy" : "device" },
      element("strong", {}, `${device.type} ${device.id}`),
      element("div", { class: "muted small" }, bytes(device.memory_bytes)),
      element("div", { class: "small" }, device.replicas.join(", ") || "idle")))))));
}

function set(node, values, refresh) {
  return async () => {
    await change("PATCH", `/nodes/${node.id}`, values);
    await refresh();
  };
}

function add(refresh) {
  ask("Add a node", [
    { name: "name", label: "Name", required: true },
    { name: "region", label: "Region" }, { name: "zone", label: "Zone" },
  ], "Add", async (values) => {
    const made = await change("POST", "/nodes", values);
    reveal(`The token of ${made.name}`, made.token,
      "The machine joins with headrace node join, and this token. Shown this once.");
    await refresh();
  });
}
