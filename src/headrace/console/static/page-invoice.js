// One invoice: what was used, what came to it, and every payment and credit note since.

import { change, get, list } from "./api.js";
import { ask } from "./dialog.js";
import { badge, button, card, element, facts, table, to } from "./dom.js";
import { count, day, dollars, moment, nextDay, period } from "./format.js";
import { dueOf, finalize, inCurrency, openDocument, save, stateBadge } from "./page-invoices.js";
import { toneOfPayment } from "./page-payments.js";

const formats = ["html", "pdf", "csv", "json", "jsonl"];

export const invoice = {
  title: "Invoice", below: "invoices", needs: "billing.read", ticks: true,
  heading: ({ item }) => (item.number ? `Invoice ${item.number}` : `Draft for ${item.tenant}`),

  async load(caller, { id }) {
    const item = await get(`/invoices/${id}`);
    const [paid, notes, status] = item.state === "draft" ? [[], [], null] : await Promise.all([
      list(`/payments?invoice=${item.id}`),
      get(`/invoices/${item.id}/credit-notes`).then(({ items }) => items), get("/status")]);
    return { item, paid, notes, provider: status?.payment_provider ?? null };
  },

  render({ item, paid, notes, provider }, refresh, caller) {
    return [summary(item, refresh, caller), lines(item), totals(item),
      item.standing ? payments(item, paid, provider, refresh, caller) : null,
      item.standing ? creditNotes(item, notes, refresh, caller) : null].filter(Boolean);
  },
};

function summary(item, refresh, caller) {
  return card("What it is", null, [
    ...formats.map((format) => button(format.toUpperCase(), () => openDocument(item, format),
      { id: `save-${format}`, label: `Save as ${format.toUpperCase()}` })),
    caller.is_operator && item.state === "draft"
      ? button("Finalize", () => finalize(item, refresh), { id: "finalize", look: "primary" }) : null],
  facts([
    ["State", stateBadge(item)],
    ["Tenant", to(item.tenant, "requests", { tenant: item.tenant_id, since: item.first_day,
      until: nextDay(item.last_day) })],
    ["Period", period(item.first_day, item.last_day)],
    ["From", item.seller.name], ["To", item.buyer.name],
    ["Issued", item.issue_day && day(item.issue_day, true)],
    ["To be paid by", item.due_day && day(item.due_day, true)],
    ["Not in it", item.unrated_requests
      ? `${count(item.unrated_requests)} requests without a price` : null],
  ]));
}

function lines(item) {
  return card("What was used", "exact sums of what each request was charged", null,
    table("Lines", [
      { label: "Model", title: true, value: (row) => element("strong", {}, row.model) },
      { label: "What", value: (row) => row.counted },
      { label: "Requests", number: true, value: (row) => count(row.requests) },
      { label: "Quantity", number: true, value: (row) => (
        row.units ? exactly(row.units) : row.tokens ? count(row.tokens) : "–") },
      { label: "Price", number: true, value: priceOf },
      { label: "Amount", number: true, value: (row) => element("span",
        { title: `$${row.amount.usd}` }, dollars(row.amount.nanousd)) },
    ], item.lines, "Nothing was used in this period."));
}

const exactly = (decimal) => Number(decimal).toLocaleString("en", { maximumFractionDigits: 9 });

/** What one price explains; none where tiers, priorities or regions made several of it. */
function priceOf({ price_per_unit: each, price_per_million: million }) {
  if (each) return `$${each.usd} each`;
  return million ? `$${million.usd} a million` : "–";
}

function totals(item) {
  const percent = (each) => (each.percent === null || each.name.includes("%") ? ""
    : ` (${each.percent}%)`);
  const exact = (money) => element("span", { title: `$${money.usd}` }, dollars(money.nanousd));
  return card("What it comes to", null, null, facts([
    ["Subtotal", exact(item.subtotal)],
    ...item.adjustments.map((each) => [`${each.name}${percent(each)}`, exact(each.amount)]),
    ["Rounding to cents", item.rounding.nanousd ? exact(item.rounding) : null],
    ...item.taxes.map((tax) => [`${tax.name}${percent(tax)}`, exact(tax.amount)]),
    ["Total", exact(item.total)],
    ["Paid from credit", item.paid_from_credit.nanousd ? exact(item.paid_from_credit) : null],
    ["Due", element("strong", {}, dueOf(item))],
    ["Exchange", item.payable ? `${item.payable.rate} ${item.payable.currency} a dollar` : null],
  ]));
}

function payments(item, paid, provider, refresh, caller) {
  const { currency, open, overpaid, paid: sum } = item.standing;
  const isOpen = Number(open) > 0;
  const pending = paid.some((payment) => payment.state === "pending");
  const note = [`${inCurrency(sum, currency)} paid`, `${inCurrency(open, currency)} open`,
    Number(overpaid) > 0 ? `${inCurrency(overpaid, currency)} too much, which became credit` : null];
  const last = paid.findLast((payment) => payment.state === "succeeded");
  return card("Payments", note.filter(Boolean).join(", "), !caller.is_operator ? null : [
    provider && isOpen && !pending
      ? button("Take a payment", () => take(item, refresh), { id: "take-payment" }) : null,
    button("Record a transfer", () => record(item, refresh),
      { id: "record-transfer", look: isOpen ? "primary" : "" })],
  table("Payments of the invoice", [
    { label: "Payment", title: true, value: (row) => [
      element("strong", {}, row.provider === "transfer" ? "Transfer" : row.provider),
      element("div", { class: "mono muted small breakable" }, row.reference || row.id)] },
    { label: "State", value: (row) => [badge(row.state, toneOfPayment[row.state] ?? "idle"),
      row.message ? element("div", { class: "muted small" }, row.message) : null] },
    { label: "When (UTC)", value: (row) => moment(row.end_time ?? row.create_time) },
    { label: "Amount", number: true, value: (row) => element("strong", {},
      inCurrency(row.amount, row.currency)) },
    { label: "Into the balance", number: true, value: (row) => to(dollars(row.credit.nanousd),
      "statement", { tenant: row.tenant_id }) },
    { label: "", value: (row) => (caller.is_operator && row === last && row.provider === "transfer"
      ? element("div", { class: "actions" }, button("Reverse", () => reverse(row, refresh),
        { id: `reverse-${row.id}`, label: `Reverse the transfer ${row.reference}` })) : null) },
  ], paid, isOpen ? "Nothing was paid yet." : "Nothing had to be paid."));
}

function record(item, refresh) {
  const { currency, open } = item.standing;
  ask("Record a transfer", [
    { name: "reference", label: "The bank's reference", required: true, wide: true },
    { name: "amount", label: `Amount, ${currency}`, type: "number", min: 0, step: "any",
      value: Number(open) > 0 ? open : "", required: true },
  ], "Record", async ({ reference, amount }) => {
    await change("POST", `/invoices/${item.id}/payments`, { reference, amount });
    await refresh();
  }, { text: "A reference counts once. What is more than is open becomes the tenant's credit." });
}

function reverse(payment, refresh) {
  ask(`Reverse the transfer ${payment.reference}?`, [
    { name: "reason", label: "Why", required: true, wide: true },
  ], "Reverse", async ({ reason }) => {
    await change("POST", `/payments/${payment.id}/reverse`, { reason });
    await refresh();
  }, { danger: true, text: "What it brought leaves the balance, and its reference is free again." });
}

function take(item, refresh) {
  const { currency, open } = item.standing;
  ask("Take a payment", [], "Take", async () => {
    await change("POST", "/payments", { invoice: item.id });
    await refresh();
  }, { text: `The provider is asked for ${inCurrency(open, currency)} within seconds, and again `
    + "until it answers." });
}

function creditNotes(item, notes, refresh, caller) {
  return card("Credit notes", "what was taken back; a final invoice itself never changes",
    caller.is_operator
      ? button("Write a credit note", () => credit(item, refresh), { id: "credit-note" }) : null,
    table("Credit notes", [
      { label: "Credit note", title: true, value: (row) => element("strong", {}, row.number) },
      { label: "Reason", value: (row) => row.reason },
      { label: "Issued", value: (row) => day(row.issue_day, true) },
      { label: "Net", number: true, value: (row) => dollars(row.net.nanousd) },
      { label: "Tax", number: true, value: (row) => dollars(row.tax.nanousd) },
      { label: "Total", number: true, value: (row) => dollars(row.total.nanousd) },
      { label: "", value: (row) => element("div", { class: "actions" }, button("HTML", () =>
        save(`/credit-notes/${row.number}/document`, `${row.number}.html`),
      { id: `html-${row.number}`, label: `Save ${row.number} as HTML` })) },
    ], notes, "Nothing was taken back."));
}

function credit(item, refresh) {
  ask("Write a credit note", [
    { name: "amount", label: "Net amount, $", type: "number", min: 0.01, step: 0.01, required: true },
    { name: "reason", label: "What for", required: true, wide: true, hint: "printed on the note" },
  ], "Write", async ({ amount, reason }) => {
    await change("POST", `/invoices/${item.id}/credit-notes`, { amount_usd: amount, reason });
    await refresh();
  }, { text: "The net amount goes back to the tenant's balance, and its tax with it off the invoice." });
}
