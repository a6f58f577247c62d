// API keys: made with their limits, shown once, changed, rotated, revoked; and how near limits are.

import { change, list, wholeList } from "./api.js";
import { ask, reveal } from "./dialog.js";
import { badge, button, card, element, meter, table, to } from "./dom.js";
import { age, count, dollars } from "./format.js";
import { limitFields, limitText, limitsOf } from "./limits.js";
import { keepKey } from "./page-playground.js";
import { toneOfKey } from "./states.js";

export const keys = {
  title: "API keys", group: "Build", needs: "key.read",

  async load() {
    const [all, projects] = await Promise.all([list("/keys"), list("/projects")]);
    return { all, projects };
  },

  render({ all, projects }, refresh, caller) {
    const mayWrite = caller.may("key.write");
    const shown = [...all].sort((a, b) =>
      (a.state === "active" ? 0 : 1) - (b.state === "active" ? 0 : 1));
    return card("API keys", "what programs present at the gateway",
      mayWrite ? button("Create key", () => create(projects, refresh),
        { id: "create-key", look: "primary" }) : null,
      table("API keys", [
        { label: "Key", title: true, value: (row) => [
          to(element("strong", {}, row.name), "requests", { key: row.id, tenant: row.tenant_id }),
          element("div", { class: "mono muted" }, `hr_${row.id.replace("key_", "").slice(0, 8)}…`)] },
        { label: "Project", value: (row) => `${row.tenant} / ${row.project}` },
        { label: "Models", value: (row) => (row.models ? row.models.join(", ") : "all") },
        { label: "Limits", value: (row) => limitText(row.limits) },
        { label: "Created", value: (row) => age(row.create_time) },
        { label: "Expires", value: (row) => (row.expire_time ? age(row.expire_time) : "never") },
        { label: "State", value: (row) => badge(row.state, toneOfKey[row.state]) },
        { label: "", value: (row) => (mayWrite && row.state !== "revoked"
          ? element("div", { class: "actions" },
            button("Edit", () => edit(row, refresh),
              { id: `edit-${row.id}`, label: `Edit ${row.name}` }),
            row.successor_id ? null : button("Rotate", () => rotate(row, refresh),
              { id: `rotate-${row.id}`, label: `Rotate ${row.name}` }),
            button("Revoke", () => revoke(row, refresh),
              { id: `revoke-${row.id}`, label: `Revoke ${row.name}` }))
          : null) },
      ], shown, "No keys yet. A key lets a program ask the gateway."));
  },
};

function create(projects, refresh) {
  ask("Create an API key", [
    { name: "project", label: "Project", options: projects.map((item) =>
      [item.id, `${item.tenant} / ${item.name}`]) },
    { name: "name", label: "Name", placeholder: "for example ci" },
    ...limitFields(null),
    { name: "days", label: "Expires in days", type: "number", min: 1, hint: "empty: never" },
  ], "Create key", async (values) => {
    const made = await change("POST", "/keys", {
      project: values.project, name: values.name || null,
      expires_in_s: values.days ? Number(values.days) * 86_400 : null,
      limits: limitsOf(values),
    });
    showKey(made);
    await refresh();
  });
}

function edit(key, refresh) {
  const words = (text) => {
    const found = text.split(",").map((part) => part.trim()).filter(Boolean);
    return found.length > 0 ? found : null;
  };
  const written = (items) => items?.join(", ") ?? "";
  ask(`Edit ${key.name}`, [
    { name: "name", label: "Name", value: key.name, required: true },
    { name: "models", label: "Models", value: written(key.models), placeholder: "all",
      hint: "comma-separated" },
    { name: "networks", label: "Only from", value: written(key.allowed_networks),
      placeholder: "anywhere", hint: "networks, as 10.0.0.0/8" },
    ...limitFields(key.limits),
  ], "Save", async (values) => {
    await change("PATCH", `/keys/${key.id}`, {
      ...(values.name === key.name ? {} : { name: values.name }),
      models: words(values.models), allowed_networks: words(values.networks),
      limits: limitsOf(values, key.limits),
    });
    await refresh();
  }, { text: "What is empty has no bound. Every gateway knows within seconds." });
}

function rotate(key, refresh) {
  ask(`Rotate ${key.name}`, [
    { name: "hours", label: "The old key works for so many more hours", type: "number", min: 0,
      value: "1", required: true },
  ], "Rotate", async ({ hours }) => {
    showKey(await change("POST", `/keys/${key.id}/rotate`, { overlap_s: Number(hours) * 3600 }));
    await refresh();
  });
}

function revoke(key, refresh) {
  ask(`Revoke ${key.name}?`, [], "Revoke key", async () => {
    await change("POST", `/keys/${key.id}/revoke`, {});
    await refresh();
  }, { danger: true, text: "Every gateway refuses it within seconds. This can't be taken back." });
}

function showKey(made) {
  keepKey(made.key);
  reveal("Your new key", made.key,
    "It is shown this once. The playground of this tab uses it until you leave the page.");
}

export const limits = {
  title: "Limits", group: "Build", needs: "usage.read", ticks: true,
  load: () => wholeList("/limits"),

  render({ items }) {
    return card("Limits", "of tenants, projects and active keys, and how near they are", null,
      table("Limits", [
        { label: "For", title: true, value: (row) => [element("strong", {}, row.name),
          element("div", { class: "muted small" }, `${row.kind} of ${row.tenant}`)] },
        { label: "Limits", value: (row) => limitText(row.limits) },
        { label: "Budget used", value: (row) => (row.budget_used ? near(
          row.budget_used.nanousd, row.limits.budget.nanousd, dollars, `Budget of ${row.name}`,
          rowsOf(row, row.budget_start_time)) : "–") },
        { label: "Tokens used", value: (row) => (row.tokens_used === null ? "–" : near(
          row.tokens_used, row.limits.tokens_per_period, count, `Tokens of ${row.name}`,
          rowsOf(row, row.tokens_start_time))) },
      ], items, "Nothing has limits yet. Give some to a key when you create it."));
  },
};

/** Which requests a limit's use was summed from. */
const rowsOf = (row, since) => ({ [row.kind]: row.id, since });

function near(used, most, format, label, rows) {
  const share = most > 0 ? used / most : 1;
  return element("div", { class: "near" }, meter(share, label),
    to(`${format(used)} of ${format(most)} (${Math.round(share * 100)}%)`, "requests", rows));
}
