// Wallets: what is left to spend, and what changed it beside requests.

import { change, get, list } from "./api.js";
import { ask } from "./dialog.js";
import { button, card, element, pager, table, to } from "./dom.js";
import { age, count, dollars, moment } from "./format.js";

export const wallets = {
  title: "Wallets", group: "Money", needs: "billing.read", ticks: true,
  async load() {
    const tenants = await list("/tenants");
    return Promise.all(tenants.slice(0, 100).map((tenant) =>
      get(`/tenants/${tenant.id}/wallet`)));
  },

  render(all, refresh, caller) {
    if (all.length === 0) return element("div", { class: "card empty" }, "No tenants yet.");
    return all.map((wallet) => card(wallet.tenant,
      wallet.balance.nanousd < 0 ? `owes ${dollars(-wallet.balance.nanousd)}`
        : `${dollars(wallet.balance.nanousd)} to spend`, [
        to("Statement", "statement", { tenant: wallet.tenant_id },
          { "aria-label": `Statement of ${wallet.tenant}` }),
        caller.is_operator
          ? button("Grant credit", () => grant(wallet, refresh), { id: `grant-${wallet.tenant_id}` })
          : null],
      table(`Grants of ${wallet.tenant}`, [
        { label: "Grant", title: true, value: (row) => element("strong", {}, row.kind) },
        { label: "Reason", value: (row) => row.reason || "–" },
        { label: "Granted", number: true, value: (row) => dollars(row.amount.nanousd) },
        { label: "Left", number: true, value: (row) => dollars(row.left.nanousd) },
        { label: "Priority", number: true, value: (row) => count(row.priority) },
        { label: "Expires", value: (row) => (row.expire_time ? age(row.expire_time) : "never") },
      ], wallet.grants, "No grants; the balance is plain credit.")));
  },
};

export const statement = {
  title: "Statement", below: "wallets", needs: "billing.read", ticks: true,
  heading: ({ wallet }) => `Statement of ${wallet.tenant}`,

  async load(caller, { tenant, after = "" }) {
    const [wallet, page] = await Promise.all([get(`/tenants/${tenant}/wallet`),
      get(`/tenants/${tenant}/entries?limit=100&after=${encodeURIComponent(after)}`)]);
    return { wallet, page, after };
  },

  render({ wallet, page, after }) {
    return card("Credit, payments and corrections", "what changed the balance beside requests", [
      element("span", { class: "muted small" }, `balance ${dollars(wallet.balance.nanousd)}`),
      to("Requests", "requests", { tenant: wallet.tenant_id })],
    table(`Entries of ${wallet.tenant}`, [
      { label: "What", title: true, value: (row) => [element("strong", {}, row.reason || "credit"),
        element("div", { class: "mono muted small breakable" }, row.id)] },
      { label: "Booked (UTC)", value: (row) => moment(row.post_time) },
      { label: "Amount", number: true, value: (row) => element("span",
        { title: `$${row.amount.usd}` }, dollars(row.amount.nanousd)) },
    ], page.items, "Nothing was booked yet beside requests."),
    pager("statement", { tenant: wallet.tenant_id }, after, page.next));
  },
};

function grant(wallet, refresh) {
  ask(`Grant credit to ${wallet.tenant}`, [
    { name: "amount", label: "Amount, $", type: "number", min: 0, step: "any", required: true },
    { name: "kind", label: "Kind", options: [["prepaid", "prepaid"],
      ["promotional", "promotional"]] },
    { name: "days", label: "Expires in days", type: "number", min: 1, hint: "empty: never" },
    { name: "reason", label: "Reason" },
  ], "Grant", async ({ amount, kind, days, reason }) => {
    await change("POST", `/tenants/${wallet.tenant_id}/grants`, {
      amount_usd: amount, kind, reason, expires_in_s: days ? Number(days) * 86_400 : null,
    });
    await refresh();
  });
}
