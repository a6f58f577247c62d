// Who pays and who may do what: tenants and their projects; people and their roles; programs.

import { change, list } from "./api.js";
import { ask, reveal } from "./dialog.js";
import { badge, button, card, element, table, to } from "./dom.js";
import { age, dollars } from "./format.js";
import { limitFields, limitText, limitsOf } from "./limits.js";

const roles = {
  owner: "everything, also who else is an owner",
  admin: "everything but owners and billing details",
  developer: "projects are given; makes and revokes keys",
  billing: "what was used, what it costs, who is told of budgets",
  viewer: "sees, and changes nothing",
};
const roleOptions = Object.keys(roles).map((role) => [role, role]);

export const tenants = {
  title: "Tenants", group: "Platform", needs: "tenant.read", ticks: true,

  async load() {
    const [all, projects] = await Promise.all([list("/tenants"), list("/projects")]);
    return { all, projects };
  },

  render({ all, projects }, refresh, caller) {
    const choices = all.map((item) => [item.id, item.name]);
    return [
      card("Tenants", "who pays", caller.is_operator
        ? button("Create tenant", () => createTenant(refresh),
          { id: "create-tenant", look: "primary" }) : null,
      table("Tenants and balances", [
        { label: "Tenant", title: true, value: (row) => element("strong", {}, row.name) },
        { label: "Billing", value: (row) => (row.postpaid ? "postpaid" : "prepaid") },
        { label: "Balance", number: true, value: (row) =>
          to(dollars(row.balance.nanousd), caller.may("billing.read") ? "statement" : "requests",
            { tenant: row.id },
            { title: `$${row.balance.usd}` }) },
        { label: "May go down to", number: true, value: (row) =>
          (row.credit_floor ? dollars(row.credit_floor.nanousd) : "anything") },
        { label: "Limits", value: (row) => limitText(row.limits) },
        { label: "State", value: (row) => badge(row.active ? "active" : "suspended",
          row.active ? "good" : "bad") },
        { label: "", value: (row) => (caller.is_operator ? element("div", { class: "actions" },
          button("Limits", () => editLimits(`/tenants/${row.id}`, row, refresh),
            { id: `limits-${row.id}`, label: `Change the limits of ${row.name}` }),
          button(row.active ? "Suspend" : "Resume", () => setActive(row, refresh),
            { id: `active-${row.id}`, label: `${row.active ? "Suspend" : "Resume"} ${row.name}` }))
          : null) },
      ], all, ["No tenants yet.", element("code", {}, "headrace tenants create NAME")])),
      card("Projects", "what keys and usage are grouped by", caller.may("project.write")
        ? button("Create project", () => createProject(choices, refresh), { id: "create-project" })
        : null,
      table("Projects", [
        { label: "Project", title: true, value: (row) => to(element("strong", {}, row.name),
          "requests", { project: row.id, tenant: row.tenant_id }) },
        { label: "Tenant", value: (row) => row.tenant },
        { label: "Limits", value: (row) => limitText(row.limits) },
        { label: "Created", value: (row) => age(row.create_time) },
        { label: "", value: (row) => (caller.may("project.write")
          ? element("div", { class: "actions" },
            button("Limits", () => editLimits(`/projects/${row.id}`, row, refresh),
              { id: `limits-${row.id}`, label: `Change the limits of ${row.name}` })) : null) },
      ], projects, "No projects yet.")),
    ];
  },
};

function createTenant(refresh) {
  ask("Create a tenant", [
    { name: "name", label: "Name", required: true },
    { name: "billing", label: "Billing", options: [["prepaid", "prepaid: as far as its credit goes"],
      ["postpaid", "postpaid: by invoice"]] },
    { name: "credit", label: "Credit to begin with, $", type: "number", min: 0, step: "any" },
  ], "Create", async ({ name, billing, credit }) => {
    await change("POST", "/tenants", { name, postpaid: billing === "postpaid",
      credit_usd: credit || null });
    await refresh();
  });
}

function setActive(tenant, refresh) {
  const verb = tenant.active ? "Suspend" : "Resume";
  ask(`${verb} ${tenant.name}?`, [], verb, async () => {
    await change("PATCH", `/tenants/${tenant.id}`, { active: !tenant.active });
    await refresh();
  }, { danger: tenant.active, text: tenant.active
    ? "Its keys are refused within seconds, until it is resumed." : "Its keys work again." });
}

function editLimits(path, row, refresh) {
  ask(`Limits of ${row.name}`, limitFields(row.limits), "Save", async (values) => {
    await change("PATCH", path, { limits: limitsOf(values, row.limits) });
    await refresh();
  }, { text: "What is empty has no limit. Every gateway knows within seconds." });
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

export const members = {
  title: "Members", group: "Platform", needs: "member.read",

  async load(caller) {
    const [all, known, users] = await Promise.all([
      list("/members"), list("/tenants"), caller.is_operator ? list("/users") : null,
    ]);
    return { all, known, users };
  },

  render({ all, known, users }, refresh, caller) {
    const choices = known.map((item) => [item.id, item.name]);
    const mayWrite = caller.may("member.write");
    return [
      card("Members", "people, and what they may do in a tenant", mayWrite
        ? button("Add member", () => addMember(choices, refresh),
          { id: "add-member", look: "primary" }) : null,
      table("Members", [
        { label: "Person", title: true, value: (row) => element("strong", {}, row.login) },
        { label: "Tenant", value: (row) => row.tenant },
        { label: "Role", value: (row) => element("span", { title: roles[row.role] }, row.role) },
        { label: "From", value: (row) => (row.from_single_sign_on ? "single sign-on" : "here") },
        { label: "Since", value: (row) => age(row.create_time) },
        { label: "", value: (row) => (mayWrite && !row.from_single_sign_on
          ? element("div", { class: "actions" },
            button("Role", () => changeRole(row, refresh),
              { id: `role-${row.id}`, label: `Change the role of ${row.login}` }),
            button("Remove", () => removeMember(row, refresh),
              { id: `remove-${row.id}`, label: `Remove ${row.login}` })) : null) },
      ], all, "Nobody yet; the platform's operators see everything.")),
      card("Roles", "what each may do", null, table("Roles", [
        { label: "Role", title: true, value: ([role]) => element("strong", {}, role) },
        { label: "May", value: ([, text]) => text },
      ], Object.entries(roles), "")),
      users === null ? null : card("Accounts", "who can sign in",
        button("Create account", () => createUser(refresh), { id: "create-user" }),
        table("Accounts", [
          { label: "Login", title: true, value: (row) => element("strong", {}, row.login) },
          { label: "Name", value: (row) => row.display_name || "–" },
          { label: "Signs in by", value: (row) => [row.has_password ? "password" : "",
            row.single_sign_on ? "single sign-on" : ""].filter(Boolean).join(", ") || "–" },
          { label: "Operator", value: (row) => (row.is_operator ? "yes" : "no") },
          { label: "State", value: (row) => badge(row.active ? "active" : "off",
            row.active ? "good" : "idle") },
        ], users, "No accounts yet; the admin token is enough to begin with.")),
    ];
  },
};

function addMember(choices, refresh) {
  ask("Add a member", [
    { name: "tenant", label: "Tenant", options: choices },
    { name: "user", label: "Login", required: true, hint: "an account that exists" },
    { name: "role", label: "Role", options: roleOptions, value: "developer" },
  ], "Add", async (values) => {
    await change("PUT", "/members", values);
    await refresh();
  });
}

function changeRole(member, refresh) {
  ask(`Role of ${member.login} in ${member.tenant}`, [
    { name: "role", label: "Role", options: roleOptions, value: member.role },
  ], "Save", async ({ role }) => {
    await change("PUT", "/members", { tenant: member.tenant_id, user: member.user_id, role });
    await refresh();
  });
}

function removeMember(member, refresh) {
  ask(`Remove ${member.login} from ${member.tenant}?`, [], "Remove", async () => {
    await change("DELETE", `/members/${member.id}`);
    await refresh();
  }, { danger: true, text: "Keys that they made go on working." });
}

function createUser(refresh) {
  ask("Create an account", [
    { name: "login", label: "Login", required: true },
    { name: "name", label: "Name" },
    { name: "operator", label: "Operator of the platform", options: [["", "no"], ["yes", "yes"]] },
  ], "Create", async ({ login, name, operator }) => {
    const made = await change("POST", "/users", {
      login, display_name: name, is_operator: operator === "yes",
    });
    reveal(`The password of ${login}`, made.initial_password,
      "It is shown this once; they can change it under Settings.");
    await refresh();
  });
}

export const serviceAccounts = {
  title: "Service accounts", group: "Platform", needs: "member.read",

  async load() {
    const [all, known] = await Promise.all([list("/service-accounts"), list("/tenants")]);
    return { all, known };
  },

  render({ all, known }, refresh, caller) {
    const mayWrite = caller.may("member.write");
    return card("Service accounts", "programs that manage a tenant by its admin API",
      mayWrite ? button("Create service account", () => createServiceAccount(known, refresh),
        { id: "create-service-account", look: "primary" }) : null,
      table("Service accounts", [
        { label: "Account", title: true, value: (row) => element("strong", {}, row.name) },
        { label: "Tenant", value: (row) => row.tenant },
        { label: "May", value: (row) => element("span", { class: "muted small" },
          row.permissions.join(", ")) },
        { label: "Expires", value: (row) => (row.expire_time ? age(row.expire_time) : "never") },
        { label: "State", value: (row) => badge(row.active ? "active" : "revoked",
          row.active ? "good" : "bad") },
        { label: "", value: (row) => (mayWrite && row.active ? element("div", { class: "actions" },
          button("Revoke", () => revokeServiceAccount(row, refresh),
            { id: `revoke-${row.id}`, label: `Revoke ${row.name}` })) : null) },
      ], all, "No service accounts yet."));
  },
};

function createServiceAccount(known, refresh) {
  ask("Create a service account", [
    { name: "tenant", label: "Tenant", options: known.map((item) => [item.id, item.name]) },
    { name: "name", label: "Name", required: true, placeholder: "for example ci" },
    { name: "role", label: "Role", options: roleOptions, value: "developer" },
    { name: "days", label: "Expires in days", type: "number", min: 1, hint: "empty: never" },
  ], "Create", async ({ tenant, name, role, days }) => {
    const made = await change("POST", "/service-accounts", {
      tenant, name, role, expires_in_s: days ? Number(days) * 86_400 : null,
    });
    reveal("The account's token", made.token, "A program sends it as a bearer token. Shown this once.");
    await refresh();
  });
}

function revokeServiceAccount(account, refresh) {
  ask(`Revoke ${account.name}?`, [], "Revoke", async () => {
    await change("POST", `/service-accounts/${account.id}/revoke`, {});
    await refresh();
  }, { danger: true, text: "For good, and at once." });
}
