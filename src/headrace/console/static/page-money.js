// Prices and wallets: what things cost, what is left to spend, and what changed it beside requests.

import { change, get, list } from "./api.js";
import { ask } from "./dialog.js";
import { badge, button, card, element, table, to } from "./dom.js";
import { age, count, dollars, moment } from "./format.js";

export const prices = {
  title: "Prices", group: "Money", needs: "operator",

  async load() {
    const [books, models, tenants] = await Promise.all([
      list("/prices"), list("/models"), list("/tenants"),
    ]);
    return { books, models, tenants };
  },

  render({ books, models, tenants }, refresh) {
    const newest = [...books].sort((a, b) =>
      Date.parse(b.effective_time) - Date.parse(a.effective_time));
    const rows = newest.flatMap((book) => Object.entries(book.prices).flatMap(([model, price]) => [
      { ...price, model, book, when: "" },
      ...(price.context_tiers ?? []).map((tier) => ({ ...tier, model, book,
        when: `prompts over ${count(tier.over_prompt_tokens)} tokens` })),
    ]));
    const nameOf = (id) => tenants.find((tenant) => tenant.id === id)?.name ?? id;
    const perMillion = (field) => (row) => `$${row[field]}`;
    return card("Prices", "dollars a million tokens; a price book never changes, a newer one counts",
      button("Add prices", () => add(models, tenants, refresh), { id: "add-prices", look: "primary" }),
      table("Prices", [
        { label: "Model", title: true, value: (row) => [element("strong", {}, row.model),
          row.when ? element("div", { class: "muted small" }, row.when) : null] },
        { label: "Input", number: true, value: perMillion("input_usd_per_million") },
        { label: "Cached input", number: true, value: perMillion("cached_input_usd_per_million") },
        { label: "Output", number: true, value: perMillion("output_usd_per_million") },
        { label: "For", value: (row) => (row.book.tenant_id ? nameOf(row.book.tenant_id) : "everybody") },
        { label: "From (UTC)", value: (row) => [moment(row.book.effective_time),
          Date.parse(row.book.effective_time) > Date.now() ? [" ", badge("later", "idle")] : null] },
        { label: "Price book", value: (row) => element("span", { class: "mono" }, row.book.name) },
      ], rows, "No prices yet. Requests of an unpriced model wait as unrated."));
  },
};

function add(models, tenants, refresh) {
  const usd = { type: "number", min: 0, step: "any", required: true };
  ask("Add prices", [
    { name: "model", label: "Model", options: models.map((model) => [model.name, model.name]) },
    { name: "tenant", label: "For", options: [["", "everybody"],
      ...tenants.map((tenant) => [tenant.id, tenant.name])] },
    { name: "input", label: "Input, $ a million", ...usd },
    { name: "cached", label: "Cached input", ...usd, required: false, hint: "empty: as input" },
    { name: "output", label: "Output, $ a million", ...usd },
    { name: "from", label: "From (UTC)", type: "datetime-local", hint: "empty: now" },
  ], "Add", async ({ model, tenant, input, cached, output, from }) => {
    await change("POST", "/prices", {
      tenant: tenant || null, effective_time: from ? `${from}Z` : null,
      prices: { [model]: {
        input_usd_per_million: input, output_usd_per_million: output,
        cached_input_usd_per_million: cached || null,
      } },
    });
    await refresh();
  }, { text: "What was used before keeps its price." });
}

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
    element("div", { class: "buttons pages" },
      after ? button("Back", () => history.back(), { id: "page-back" }) : null,
      page.next ? to("Older", "statement", { tenant: wallet.tenant_id, after: page.next },
        { class: "button", id: "page-older" }) : null));
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
