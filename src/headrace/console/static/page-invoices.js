// Invoices: drafts from the ledger, final ones, and how far each is paid.

import { change, get } from "./api.js";
import { ask } from "./dialog.js";
import { badge, button, card, element, pager, table, to } from "./dom.js";
import { count, dollars, period, thisMonth, today } from "./format.js";
import { nameSeller } from "./seller.js";

const rowsMax = 100;
const tones = { paid: "good", overpaid: "good", "partly paid": "warn", overdue: "bad" };

export const invoices = {
  title: "Invoices", group: "Money", needs: "billing.read",

  async load(caller, { after = "", tenant = "" }) {
    const query = new URLSearchParams({ limit: rowsMax, after });
    const whose = tenant ? `tenant=${encodeURIComponent(tenant)}` : caller.view.tenant;
    const [page, seller] = await Promise.all([
      get(`/invoices?${query}&${whose}`), caller.is_operator ? get("/seller").catch(() => null) : null]);
    return { page, seller, after, tenant };
  },

  render({ page, seller, after, tenant }, refresh, caller) {
    const from = seller ? `from ${seller.party.name}; the same ledger gives the same bytes`
      : "the same ledger gives the same bytes";
    return card("Invoices", from, !caller.is_operator ? null : [
      seller ? null : button("Name the seller", () => nameSeller(null, refresh), { id: "name-seller" }),
      button("Draw drafts", () => draw(refresh), { id: "draw-invoices", look: "primary" })],
    table("Invoices", [
      { label: "Invoice", title: true, value: (row) => to(element("strong", {},
        row.number ?? "Draft"), "invoice", { id: row.id },
      { "aria-label": `${row.number ?? "The draft"} of ${row.tenant}` }) },
      { label: "Tenant", value: (row) => row.tenant },
      { label: "Period", value: (row) => period(row.first_day, row.last_day) },
      { label: "State", value: (row) => [stateBadge(row), row.unrated_requests
        ? element("div", { class: "muted small" }, `${count(row.unrated_requests)} unrated`) : null] },
      { label: "Total", number: true, value: (row) => dollars(row.total.nanousd) },
      { label: "From credit", number: true, value: (row) => dollars(row.paid_from_credit.nanousd) },
      { label: "Due", number: true, value: (row) => element("strong", {}, dueOf(row)) },
      { label: "Open", number: true, value: (row) =>
        (row.standing ? inCurrency(row.standing.open, row.standing.currency) : "–") },
      { label: "", value: (row) => element("div", { class: "actions" },
        ...["html", "pdf"].map((format) => button(format.toUpperCase(), () =>
          openDocument(row, format), { id: `${format}-${row.id}`,
          label: `Save ${row.number ?? "the draft"} as ${format.toUpperCase()}` })),
        caller.is_operator && row.state === "draft"
          ? button("Finalize", () => finalize(row, refresh), { id: `finalize-${row.id}` }) : null) },
    ], page.items, "No invoices yet. Draw drafts from the ledger at any time."),
    pager("invoices", tenant ? { tenant } : {}, after, page.next));
  },
};

/** What is to be paid, in the currency in which it is. */
export const dueOf = (invoice) => (invoice.payable
  ? inCurrency(invoice.payable.due, invoice.payable.currency) : dollars(invoice.due.nanousd));

/** A decimal amount in a currency, as `€12.50`. */
export function inCurrency(decimal, currency) {
  return new Intl.NumberFormat("en", { style: "currency", currency }).format(Number(decimal));
}

/** An invoice's state in a badge; what is open after its day is overdue. */
export function stateBadge(invoice) {
  const paid = invoice.standing?.state ?? "draft";
  const isLate = ["open", "partly paid"].includes(paid) && invoice.due_day < today();
  const word = isLate ? "overdue" : paid;
  return badge(word, tones[word] ?? "idle");
}

function draw(refresh) {
  ask("Draw drafts", [
    { name: "month", label: "Month", value: thisMonth(), required: true, placeholder: "2026-11" },
  ], "Draw", async ({ month }) => {
    await change("POST", "/invoices", { month });
    await refresh();
  }, { text: "One draft for each tenant; older drafts of the same days are replaced." });
}

/** Ask whether a draft becomes final. */
export function finalize(invoice, refresh) {
  const isZero = invoice.total.nanousd === 0;
  ask(`Finalize the draft of ${invoice.tenant}?`, [], isZero ? "Number it anyway" : "Finalize", async () => {
    await change("POST", `/invoices/${invoice.id}/finalize`, { allow_zero: isZero });
    await refresh();
  }, { text: isZero
    ? "It charges nothing, so it needs no number. With one, it never changes from then on."
    : "It gets the next number, and never changes from then on." });
}

/** Save an invoice in one of its formats. */
export const openDocument = (invoice, format) => save(
  `/invoices/${invoice.id}/document?format=${format}`, `${invoice.number ?? "draft"}.${format}`);

/** Fetch a document with the session and save it; a plain link would carry no console header. */
export async function save(path, name) {
  const answer = await fetch(`/admin/v1${path}`, { headers: { "x-headrace-console": "1" } });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  const address = URL.createObjectURL(await answer.blob());
  const link = element("a", { href: address, target: "_blank", rel: "noopener",
    download: name }); // saved, not shown: as a page of this origin our style policy would hold
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
