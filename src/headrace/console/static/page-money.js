// Prices, invoices and wallets: what things cost, what is billed, what is left to spend.

import { change, get, list, ofTenants, tenantsOf } from "./api.js";
import { ask } from "./dialog.js";
import { badge, button, card, element, table, to } from "./dom.js";
import { age, count, day, dollars, moment, thisMonth } from "./format.js";
import { nameSeller } from "./seller.js";

const toneOfInvoice = { draft: "warn", final: "good" };

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

export const invoices = {
  title: "Invoices", group: "Money", needs: "billing.read",

  async load(caller) {
    const [invoices, seller] = await Promise.all([
      ofTenants(tenantsOf(caller, "billing.read"), async (query) =>
        (await get(`/invoices?${query}`)).items),
      caller.is_operator ? get("/seller").catch(() => null) : null,
    ]);
    return { items: invoices, seller };
  },

  render({ items, seller }, refresh, caller) {
    const from = seller ? `from ${seller.party.name}; the same ledger gives the same bytes`
      : "the same ledger gives the same bytes";
    return card("Invoices", from, !caller.is_operator ? null : [
      seller ? null : button("Name the seller", () => nameSeller(null, refresh), { id: "name-seller" }),
      button("Draw drafts", () => draw(refresh), { id: "draw-invoices", look: "primary" })],
    table("Invoices", [
      { label: "Invoice", title: true, value: (row) => element("strong", {},
        row.number ?? "draft") },
      { label: "Tenant", value: (row) => row.tenant },
      { label: "Period", value: (row) => `${day(row.first_day)} – ${day(row.last_day)}` },
      { label: "State", value: (row) => [badge(row.state, toneOfInvoice[row.state] ?? "idle"),
        row.unrated_requests ? element("div", { class: "muted small" },
          `${count(row.unrated_requests)} unrated`) : null] },
      { label: "Total", number: true, value: (row) => to(dollars(row.total.nanousd), "requests",
        { tenant: row.tenant_id, since: row.first_day, until: dayAfter(row.last_day) }) },
      { label: "From credit", number: true, value: (row) => dollars(row.paid_from_credit.nanousd) },
      { label: "Due", number: true, value: (row) => element("strong", {},
        dollars(row.due.nanousd)) },
      { label: "", value: (row) => element("div", { class: "actions" },
        ...["html", "pdf"].map((format) => button(format.toUpperCase(), () =>
          openDocument(row, format), { id: `${format}-${row.id}`,
          label: `Open ${row.number ?? "the draft"} as ${format.toUpperCase()}` })),
        caller.is_operator && row.state === "draft"
          ? button("Finalize", () => finalize(row, refresh), { id: `finalize-${row.id}` }) : null) },
    ], [...items].reverse(), "No invoices yet. Draw drafts from the ledger at any time."));
  },
};

const dayAfter = (text) =>
  new Date(Date.parse(text) + 86_400_000).toISOString().slice(0, 10);

function draw(refresh) {
  ask("Draw drafts", [
    { name: "month", label: "Month", value: thisMonth(), required: true, placeholder: "2026-11" },
  ], "Draw", async ({ month }) => {
    await change("POST", "/invoices", { month });
    await refresh();
  }, { text: "One draft for each tenant; older drafts of the same days are replaced." });
}

function finalize(invoice, refresh) {
  ask(`Finalize the draft of ${invoice.tenant}?`, [], "Finalize", async () => {
    await change("POST", `/invoices/${invoice.id}/finalize`, {});
    await refresh();
  }, { text: "It gets the next number, and never changes from then on." });
}

/** Fetch a document with the session and save it; a plain link would carry no console header. */
async function openDocument(invoice, format) {
  const answer = await fetch(`/admin/v1/invoices/${invoice.id}/document?format=${format}`, {
    headers: { "x-headrace-console": "1" },
  });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  const address = URL.createObjectURL(await answer.blob());
  const link = element("a", { href: address, target: "_blank", rel: "noopener",
    // Saved, not shown: as a page of this origin it would be under the console's style policy.
    download: `${invoice.number ?? "draft"}.${format}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
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
      `${dollars(wallet.balance.nanousd)} to spend`, caller.is_operator
        ? button("Grant credit", () => grant(wallet, refresh), { id: `grant-${wallet.tenant_id}` })
        : null,
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
