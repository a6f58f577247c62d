// Who pays and who may do what: tenants, their projects and members; webhooks; the audit log.

import { change, get, list } from "./api.js";
import { ask, reveal } from "./dialog.js";
import { badge, button, card, element, table } from "./dom.js";
import { age, count, dollars, moment } from "./format.js";
import { limitText } from "./page-keys.js";

const roles = ["owner", "admin", "developer", "billing", "viewer"];
const auditRecordsMax = 100;

export const tenants = {
  title: "Tenants", group: "Platform", needs: "tenant.read",

  async load(caller) {
    const [all, projects, members] = await Promise.all([
      list("/tenants"), list("/projects"), caller.may("member.read") ? list("/members") : [],
    ]);
    return { all, projects, members };
  },

  render({ all, projects, members }, refresh, caller) {
    const choices = all.map((item) => [item.id, item.name]);
    return [
      card("Tenants", "who pays", caller.is_operator
        ? button("Create tenant", () => createTenant(refresh), { id: "create-tenant" }) : null,
      table("Tenants and balances", [
        { label: "Tenant", title: true, value: (row) => element("strong", {}, row.name) },
        { label: "Billing", value: (row) => (row.postpaid ? "postpaid" : "prepaid") },
        { label: "Balance", number: true, value: (row) => element("span", {
          title: `$${row.balance.usd}` }, dollars(row.balance.nanousd)) },
        { label: "Floor", number: true, value: (row) =>
          (row.credit_floor ? dollars(row.credit_floor.nanousd) : "none") },
        { label: "Limits", value: (row) => limitText(row.limits) },
        { label: "State", value: (row) => badge(row.active ? "active" : "suspended",
          row.active ? "good" : "bad") },
        { label: "Created", value: (row) => age(row.create_time) },
      ], all, ["No tenants yet.", element("code", {}, "headrace tenants create NAME")])),
      card("Projects", "what keys and usage are grouped by", caller.may("project.write")
        ? button("Create project", () => createProject(choices, refresh), { id: "create-project" })
        : null,
      table("Projects", [
        { label: "Project", title: true, value: (row) => element("strong", {}, row.name) },
        { label: "Tenant", value: (row) => row.tenant },
        { label: "Limits", value: (row) => limitText(row.limits) },
        { label: "Created", value: (row) => age(row.create_time) },
      ], projects, "No projects yet.")),
      card("Members", "people and their roles", caller.may("member.write")
        ? button("Add member", () => addMember(choices, refresh), { id: "add-member" }) : null,
      table("Members", [
        { label: "Person", title: true, value: (row) => element("strong", {}, row.login) },
        { label: "Tenant", value: (row) => row.tenant },
        { label: "Role", value: (row) => row.role },
        { label: "From", value: (row) => (row.from_single_sign_on ? "single sign-on" : "here") },
        { label: "Since", value: (row) => age(row.create_time) },
      ], members, "Nobody yet; the platform's operators see everything.")),
    ];
  },
};

function createTenant(refresh) {
  ask("Create a tenant", [
    { name: "name", label: "Name", required: true },
    { name: "credit", label: "Credit to begin with, $", type: "number", min: 0, step: "any" },
  ], "Create", async ({ name, credit }) => {
    await change("POST", "/tenants", { name, credit_usd: credit || null });
    await refresh();
  });
}

function createProject(choices, refresh) {
  ask("Create a project", [
    { name: "tenant", label: "Tenant", options: choices },
    { name: "name", label: "Name", required: true },
  ], "Create", async (values) => {
    await change("POST", "/projects", values);
    await refresh();
  });
}

function addMember(choices, refresh) {
  ask("Add a member", [
    { name: "tenant", label: "Tenant", options: choices },
    { name: "user", label: "Login", required: true, hint: "an account that exists" },
    { name: "role", label: "Role", options: roles.map((role) => [role, role]), value: "developer" },
  ], "Add", async (values) => {
    await change("PUT", "/members", values);
    await refresh();
  });
}

export const webhooks = {
  title: "Webhooks", group: "Platform", needs: "webhook.read",
  load: () => list("/webhooks"),

  render(all, refresh, caller) {
    const mayWrite = caller.may("webhook.write");
    return card("Webhooks", "who is told when a budget runs low; signed as Standard Webhooks say",
      mayWrite ? button("Create webhook", () => createWebhook(refresh), { id: "create-webhook" })
        : null,
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
          }, { id: `test-${row.id}`, label: `Send a test to ${row.name}` })) : null) },
      ], all, "No webhooks yet."));
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
  async load() {
    return (await get(`/audit?newest_first=true&limit=${auditRecordsMax}`)).items;
  },

  render(records) {
    return card("Audit log", `the newest ${count(auditRecordsMax)}; each record is chained to the `
      + "one before by its hash", null,
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
    ], records, "Nothing was changed yet."));
  },
};
