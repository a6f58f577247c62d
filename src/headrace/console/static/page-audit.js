// Who is told, and what was done: webhooks with their deliveries, and the audit log.

import { change, get, list } from "./api.js";
import { ask, reveal } from "./dialog.js";
import { badge, button, card, element, pager, table } from "./dom.js";
import { age, count, moment } from "./format.js";

const auditRecordsMax = 100;

export const webhooks = {
  title: "Webhooks", group: "Platform", needs: "webhook.read",

  async load() {
    const all = await list("/webhooks");
    const deliveries = await Promise.all(all.slice(0, 20).map(async (hook) =>
      (await get(`/webhooks/${hook.id}/deliveries`)).items.map((item) => ({ ...item, hook }))));
    return { all, deliveries: deliveries.flat() };
  },

  render({ all, deliveries }, refresh, caller) {
    const mayWrite = caller.may("webhook.write");
    return [
      card("Webhooks", "who is told when a budget runs low; signed as Standard Webhooks say",
        mayWrite ? button("Create webhook", () => createWebhook(refresh),
          { id: "create-webhook", look: "primary" }) : null,
        table("Webhooks", [
          { label: "Webhook", title: true, value: (row) => element("strong", {}, row.name) },
          { label: "URL", value: (row) => element("span", { class: "mono breakable" }, row.url) },
          { label: "Events", value: (row) => row.events.join(", ") },
          { label: "State", value: (row) => badge(row.active ? "active" : "off",
            row.active ? "good" : "idle") },
          { label: "", value: (row) => (mayWrite ? element("div", { class: "actions" },
            button("Test", async () => {
              await change("POST", `/webhooks/${row.id}/test`, {});
              await refresh();
            }, { id: `test-${row.id}`, label: `Send a test to ${row.name}` }),
            button("Delete", () => ask(`Delete ${row.name}?`, [], "Delete", async () => {
              await change("DELETE", `/webhooks/${row.id}`);
              await refresh();
            }, { danger: true, text: "What waits for it is forgotten." }),
            { id: `delete-${row.id}`, label: `Delete ${row.name}` })) : null) },
        ], all, "No webhooks yet.")),
      deliveries.length === 0 ? null : card("Deliveries", "the newest of each", null,
        table("Deliveries", [
          { label: "Event", title: true, value: (row) => element("strong", {}, row.type) },
          { label: "Webhook", value: (row) => row.hook.name },
          { label: "State", value: (row) => badge(row.state,
            row.state === "delivered" ? "good" : row.state === "failed" ? "bad" : "warn") },
          { label: "Attempts", number: true, value: (row) => count(row.attempts) },
          { label: "Last answer", value: (row) => row.last_status ?? row.last_error ?? "–" },
          { label: "Next attempt", value: (row) =>
            (row.state === "pending" ? age(row.next_attempt_time) : "–") },
        ], deliveries, "None yet.")),
    ];
  },
};

function createWebhook(refresh) {
  ask("Create a webhook", [
    { name: "url", label: "URL", type: "url", required: true, wide: true,
      hint: "https, at a public address" },
  ], "Create", async ({ url }) => {
    const made = await change("POST", "/webhooks", { url });
    reveal("The webhook's secret", made.secret, "It signs what the webhook is told. Shown this once.");
    await refresh();
  });
}

export const audit = {
  title: "Audit log", group: "Platform", needs: "audit.read",
  async load(caller, { after = "" }) {
    const page = await get(`/audit?newest_first=true&limit=${auditRecordsMax}`
      + `&after=${encodeURIComponent(after)}&${caller.view.tenant}`);
    return { ...page, after };
  },

  render({ items: records, next, after }, _, caller) {
    const verdict = element("span", { id: "audit-verdict", role: "status" });
    const check = button("Check the chain", async () => {
      const { sound, findings, records: total } = await get("/audit/verify");
      verdict.replaceChildren(badge(sound ? `${count(total)} records, every hash is right`
        : findings[0], sound ? "good" : "bad"));
    }, { id: "check-audit" });
    return card("Audit log", "the newest first; each record is chained to the one before by its hash", caller.is_operator ? [verdict, check] : null,
    table("Audit log", [
      { label: "Action", title: true, value: (row) => [
        element("strong", {}, row.action.replaceAll("_", " ")),
        element("div", { class: "mono muted breakable" }, row.target)] },
      { label: "Who", value: (row) => row.actor_name },
      { label: "When (UTC)", value: (row) => moment(row.record_time) },
      { label: "Outcome", value: (row) => badge(row.outcome,
        row.outcome === "done" ? "good" : "bad") },
      { label: "Hash", value: (row) => element("span", { class: "mono muted", title: row.hash },
        `${row.hash.slice(0, 10)}…`) },
    ], records, after ? "Nothing older." : "Nothing was changed yet."),
    pager("audit", {}, after, next));
  },
};
