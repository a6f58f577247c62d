// Who writes the invoices: asked for, and sent back whole, since the API replaces all of it.

import { change } from "./api.js";
import { ask } from "./dialog.js";

/** Ask who writes the invoices; what the form has no field for stays as it was. */
export function nameSeller(seller, refresh) {
  ask("Who writes the invoices?", [
    { name: "name", label: "Name", value: seller?.party.name, required: true },
    { name: "address", label: "Address", value: seller?.party.address.join(", "), wide: true,
      hint: "its lines, comma-separated" },
    { name: "country", label: "Country", value: seller?.party.country, hint: "two letters, as DE" },
    { name: "tax", label: "Tax number", value: seller?.party.tax_id },
    { name: "days", label: "Days to pay", type: "number", min: 0, value: seller?.payment_days ?? 14 },
    { name: "prefix", label: "Numbers begin with", value: seller?.number_prefix ?? "INV", required: true },
    { name: "note", label: "Note on payment", value: seller?.payment_note, wide: true,
      placeholder: "an account to transfer to" },
  ], "Save", async ({ name, address, country, tax, days, prefix, note }) => {
    const said = {
      name, address: address.split(",").map((line) => line.trim()).filter(Boolean),
      country: country.toUpperCase(), tax_id: tax, payment_days: Number(days),
      number_prefix: prefix, payment_note: note,
    };
    await change("PUT", "/seller", seller ? sellerBody(seller, said) : said);
    await refresh();
  }, { text: "Taxes and currencies are under Billing terms. Invoices that are final stay." });
}

/** The seller as it is sent back, with one thing changed. */
export function sellerBody(seller, changes) {
  const { party, number_prefix, taxes, payment_days, payment_note, exchange_rates, font_path } = seller;
  return { ...party, number_prefix, taxes, payment_days, payment_note, exchange_rates, font_path,
    ...changes };
}
