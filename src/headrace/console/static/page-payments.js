// Money that a payment provider takes and gives back: whether there is one, how tenants pay, each payment.

import { change, get, list } from "./api.js";
import { ask } from "./dialog.js";
import { badge, button, card, element, table, to } from "./dom.js";
import { age, dollars, moment } from "./format.js";
import { inCurrency } from "./page-invoices.js";

export const toneOfPayment = { pending: "warn", succeeded: "good", failed: "bad", unknown: "warn",
  reversed: "idle" };
const purposes = { recharge: "Credit", invoice: "Invoice", refund: "Refund" };

export const payments = {
  title: "Payments", group: "Money", needs: "billing.read", ticks: true,

  async load(caller) {
    const [status, tenants, made, invoices] = await Promise.all([
      get("/status"), list("/billing"), list(`/payments?${caller.view.tenant}`),
      list(`/invoices?${caller.view.tenant}`),
    ]);
    const due = invoices.filter(({ standing }) => Number(standing?.open ?? 0) > 0);
    const numbers = Object.fromEntries(invoices.map((invoice) => [invoice.id, invoice.number]));
    return { provider: status.payment_provider, tenants, made: made.sort(newestFirst), due, numbers };
  },

  render({ provider, tenants, made, due, numbers }, refresh, caller) {
    const mayAct = caller.is_operator && provider !== null;
    const nameOf = Object.fromEntries(tenants.map((row) => [row.tenant_id, row.tenant]));
    const open = due.filter((invoice) => !made.some((payment) => payment.invoice_id === invoice.id
      && payment.state === "pending"));
    return [
      card("Payments", null, mayAct && open.length > 0
        ? button("Take a payment", () => pay(open, refresh), { id: "take-payment", look: "primary" }) : null,
      providerLine(provider, caller),
      table("Payments", [
        { label: "Payment", title: true, value: (row) => [
          element("strong", {}, purposes[row.purpose] ?? row.purpose),
          element("div", { class: "mono muted small", title: row.id },
            row.reference || `${row.id.slice(0, 14)}…`)] },
        { label: "Tenant", value: (row) => nameOf[row.tenant_id] ?? row.tenant_id },
        { label: "For", value: (row) => subject(row, numbers) },
        { label: "Amount", number: true, value: (row) => element("strong", {},
          `${row.purpose === "refund" ? "−" : ""}${inCurrency(row.amount, row.currency)}`) },
        { label: "State", value: (row) => [badge(row.state, toneOfPayment[row.state] ?? "idle"),
          row.message ? element("div", { class: "muted small" }, row.message) : null] },
        { label: "Ordered", value: (row) => age(row.create_time) },
        { label: "Ended (UTC)", value: (row) => moment(row.end_time) },
        { label: "", value: (row) => action(row, mayAct, caller, refresh) },
      ], made, provider === null ? "No payments." : "No payments yet.")),
      card("How tenants pay", "by the provider's own ids; no card number is ever here", null,
        table("How tenants pay", [
          { label: "Tenant", title: true, value: (row) => element("strong", {}, row.tenant) },
          { label: "Customer", value: (row) => (row.agreement
            ? element("span", { class: "mono" }, row.agreement.customer) : "by transfer") },
          { label: "Payment method", value: (row) => (!row.agreement ? "–"
            : row.agreement.payment_method
              ? element("span", { class: "mono" }, row.agreement.payment_method)
              : "the customer's default") },
          { label: "Recharge", value: (row) => rechargeText(row.agreement?.recharge) },
          { label: "", value: (row) => (mayAct ? element("div", { class: "actions" },
            button(row.agreement ? "Change" : "Set up", () => agree(row, provider, refresh),
              { id: `agree-${row.tenant_id}`, label: `${row.agreement ? "Change" : "Set up"} how ${row.tenant} pays` })) : null) },
        ], tenants, "No tenants yet.")),
    ];
  },
};

/** What an operator can do about a payment: give it back, or say what became of it. */
function action(row, mayAct, caller, refresh) {
  const act = mayAct && row.purpose === "recharge" && row.state === "succeeded"
    ? ["Refund", refund] : caller.is_operator && row.state === "unknown" ? ["Resolve", resolve] : null;
  if (act === null) return null;
  return element("div", { class: "actions" }, button(act[0], () => act[1](row, refresh),
    { id: `${act[0].toLowerCase()}-${row.id}`, label: `${act[0]} the payment ${row.id}` }));
}

const newestFirst = (a, b) => Date.parse(b.create_time) - Date.parse(a.create_time);

function providerLine(provider, caller) {
  const name = provider && provider[0].toUpperCase() + provider.slice(1);
  return element("p", { class: "status-line" },
    badge(name ? `${name} is on` : "No provider", "idle"),
    element("span", { class: "muted" }, name
      ? "A payment is booked once, however often the provider is asked."
      : caller.is_operator
        ? ["Invoices are paid by transfer, and credit is granted by hand. To take payments, name the "
          + "provider in the file of ", element("code", {}, "HEADRACE_PAYMENTS_FILE"), "."]
        : "Invoices are paid by transfer, as they say."));
}

function subject(row, numbers) {
  if (row.invoice_id) return to(numbers[row.invoice_id] ?? row.invoice_id, "invoice",
    { id: row.invoice_id });
  if (row.refunded_id) return element("span", { class: "mono small breakable" }, row.refunded_id);
  return `${dollars(row.credit.nanousd)} of credit`;
}

function rechargeText(recharge) {
  if (!recharge) return "none";
  return `${dollars(recharge.amount.nanousd)} when under ${dollars(recharge.below.nanousd)}, `
    + `at most ${recharge.a_day_max} a day`;
}

function agree(row, provider, refresh) {
  const { customer, payment_method: method, recharge } = row.agreement ?? {};
  ask(`How ${row.tenant} pays`, [
    { name: "customer", label: `Customer at ${provider}`, value: customer, required: true,
      placeholder: "cus_…" },
    { name: "method", label: "Payment method", value: method, placeholder: "pm_…",
      hint: "empty: the customer's default" },
    { name: "below", label: "Buy credit when under, $", type: "number", min: 0, step: "any",
      value: recharge?.below.usd, hint: "empty: credit is not bought by itself" },
    { name: "amount", label: "So much, $", type: "number", min: 0.01, step: 0.01,
      value: recharge?.amount.usd },
    { name: "most", label: "At most a day", type: "number", min: 1, max: 100, value: recharge?.a_day_max ?? 3 },
  ], "Save", async ({ customer: id, method: by, below, amount, most }) => {
    if (Boolean(below) !== Boolean(amount)) throw new Error("Give both amounts of a recharge, or none.");
    await change("PUT", `/tenants/${row.tenant_id}/payment-agreement`, {
      customer: id, payment_method: by || null,
      recharge: below ? { below_usd: below, amount_usd: amount, a_day_max: Number(most) } : null,
    });
    await refresh();
  });
}

function pay(open, refresh) {
  ask("Take a payment", [
    { name: "invoice", label: "Of the invoice", wide: true, options: open.map((invoice) => [invoice.id,
      `${invoice.number}, ${invoice.tenant}: ${inCurrency(invoice.standing.open,
        invoice.standing.currency)} open`]) },
  ], "Take", async ({ invoice }) => {
    await change("POST", "/payments", { invoice });
    await refresh();
  }, { text: "The provider is asked within seconds, and again until it answers." });
}

function refund(row, refresh) {
  ask("Refund", [
    { name: "amount", label: "Amount, $", type: "number", min: 0.01, step: 0.01, required: true,
      value: (row.credit.nanousd / 1e9).toFixed(2) },
  ], "Refund", async ({ amount }) => {
    await change("POST", `/payments/${row.id}/refunds`, { amount_usd: amount });
    await refresh();
  }, { danger: true, text: "It leaves the tenant's balance at once, and comes back if the provider declines." });
}

function resolve(row, refresh) {
  ask("What became of this payment?", [
    { name: "end", label: "It", required: true, options: [["succeeded", "succeeded: the money came"],
      ["failed", "failed: no money moved"]] },
    { name: "reference", label: "The provider's reference", hint: "empty: as it is known" },
    { name: "reason", label: "Who said so", required: true, wide: true },
  ], "Book it", async ({ end, reference, reason }) => {
    await change("POST", `/payments/${row.id}/resolve`, {
      succeeded: end === "succeeded", reference, reason });
    await refresh();
  }, { danger: true, text: `Ask ${row.provider} first: the books follow what you say here.` });
}
