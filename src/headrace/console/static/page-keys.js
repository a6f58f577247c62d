// API keys: made with their limits, shown once, rotated, revoked; and how near limits are.

import { change, get, list } from "./api.js";
import { ask, reveal } from "./dialog.js";
import { badge, button, card, element, meter, table } from "./dom.js";
import { age, count, dollars } from "./format.js";
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
        { label: "Key", title: true, value: (row) => [element("strong", {}, row.name),
          element("div", { class: "mono muted" }, `hr_${row.id.replace("key_", "").slice(0, 8)}…`)] },
        { label: "Project", value: (row) => `${row.tenant} / ${row.project}` },
        { label: "Models", value: (row) => (row.models ? row.models.join(", ") : "all") },
        { label: "Limits", value: (row) => limitText(row.limits) },
        { label: "Created", value: (row) => age(row.create_time) },
        { label: "Expires", value: (row) => (row.expire_time ? age(row.expire_time) : "never") },
        { label: "State", value: (row) => badge(row.state, toneOfKey[row.state]) },
        { label: "", value: (row) => (mayWrite && row.state !== "revoked"
          ? element("div", { class: "actions" },
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
    { name: "rpm", label: "Requests a minute", type: "number", min: 0, hint: "empty: no limit" },
    { name: "tpm", label: "Tokens a minute", type: "number", min: 0 },
    { name: "budget", label: "Budget a month, $", type: "number", min: 0, step: "any" },
    { name: "days", label: "Expires in days", type: "number", min: 1, hint: "empty: never" },
  ], "Create key", async (values) => {
    const limits = {};
    if (values.rpm) limits.requests_per_minute = Number(values.rpm);
    if (values.tpm) limits.tokens_per_minute = Number(values.tpm);
    if (values.budget) Object.assign(limits, { budget_usd: values.budget, budget_period: "month" });
    const made = await change("POST", "/keys", {
      project: values.project, name: values.name || null,
      expires_in_s: values.days ? Number(values.days) * 86_400 : null,
      limits: Object.keys(limits).length ? limits : null,
    });
    showKey(made);
    await refresh();
  });
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

/** Limits in few words. */
export function limitText(limits) {
  if (!limits) return "none";
  const parts = [
    limits.requests_per_minute != null ? `${count(limits.requests_per_minute)} requests/min` : "",
    limits.tokens_per_minute != null ? `${count(limits.tokens_per_minute)} tokens/min` : "",
    limits.concurrent_requests != null ? `${count(limits.concurrent_requests)} at once` : "",
    limits.tokens_per_period != null
      ? `${count(limits.tokens_per_period)} tokens/${period(limits.period)}` : "",
    limits.budget ? `${dollars(limits.budget.nanousd)}/${period(limits.budget_period)}` : "",
  ];
  return parts.filter(Boolean).join(", ") || "none";
}

const period = (value) => (typeof value === "number" ? `${value} s` : value);

export const limits = {
  title: "Limits", group: "Build", needs: "usage.read",
  load: () => get("/limits"),

  render({ items }) {
    return card("Limits and how near they are", "tenants, projects and active keys", null,
      table("Limits", [
        { label: "For", title: true, value: (row) => [element("strong", {}, row.name),
          element("div", { class: "muted small" }, `${row.kind} of ${row.tenant}`)] },
        { label: "Limits", value: (row) => limitText(row.limits) },
        { label: "Budget used", value: (row) => (row.budget_used ? near(
          row.budget_used.nanousd, row.limits.budget.nanousd, dollars, `Budget of ${row.name}`) : "–") },
        { label: "Tokens used", value: (row) => (row.tokens_used === null ? "–" : near(
          row.tokens_used, row.limits.tokens_per_period, count, `Tokens of ${row.name}`)) },
      ], items, "Nothing has limits yet. Give some to a key when you create it."));
  },
};

function near(used, most, format, label) {
  const share = most > 0 ? used / most : 1;
  return element("div", { class: "near" }, meter(share, label),
    element("span", {}, `${format(used)} of ${format(most)} (${Math.round(share * 100)}%)`));
}
