// How tenants are billed beyond the price list: commitments, discounts, free tokens, taxes, currencies.

import { change, get, list } from "./api.js";
import { ask } from "./dialog.js";
import { button, card, element, facts, table } from "./dom.js";
import { count, dollars } from "./format.js";
import { nameSeller, sellerBody } from "./seller.js";

export const terms = {
  title: "Billing terms", group: "Money", needs: "billing.read",

  async load(caller) {
    const tenants = await list("/billing");
    if (!caller.is_operator) return { tenants };
    const [common, seller] = await Promise.all([
      get("/terms").catch(() => null), get("/seller").catch(() => null)]);
    return { tenants, common, seller };
  },

  render({ tenants, common, seller }, refresh, caller) {
    if (!caller.is_operator) {
      return tenants.flatMap((row) => ofOneTenant(row, refresh, caller, tenants.length > 1));
    }
    return [
      card("Everybody's terms", "of tenants that have none of their own", [
        button(common ? "Change" : "Agree on terms", () => edit("everybody", "/terms", common, refresh),
          { id: "change-terms", look: common ? "" : "primary" }),
        common ? button("Drop", () => drop("everybody", "/terms", refresh), { id: "drop-terms" }) : null],
      common ? factsOf(common) : element("p", { class: "muted" },
        "Nothing was agreed: everybody pays the price list.")),
      card("Tenants", "what holds for each when its invoice is drawn", null,
        table("Terms of tenants", [
          { label: "Tenant", title: true, value: (row) => [element("strong", {}, row.tenant),
            row.profile ? element("div", { class: "muted small" }, row.profile.party.name) : null] },
          { label: "Agreed", value: (row) => [element("div", { class: "muted small" },
            row.terms?.tenant_id ? "its own terms" : row.terms ? "everybody's terms" : "the price list"),
          row.terms ? linesOf([...discounts(row.terms),
            ...freeTokens(row.terms).map((text) => `${text} free`)]) : null] },
          { label: "Committed a month", number: true, value: (row) => committed(row.terms) },
          { label: "Pays in", value: (row) => [row.profile?.currency || "USD",
            row.profile?.tax_exempt ? element("div", { class: "muted small" }, "tax exempt") : null] },
          { label: "", value: (row) => actions(row, refresh) },
        ], tenants, "No tenants yet.")),
      ...(seller ? [sellerCard(seller, refresh), taxCard(seller, refresh), currencyCard(seller, refresh)]
        : [card("Taxes and currencies", "they belong to who writes the invoices",
          button("Name the seller", () => nameSeller(null, refresh), { id: "name-seller" }),
          element("p", { class: "muted" }, "Nobody writes the invoices yet."))]),
    ];
  },
};

/** What a customer sees: what was agreed with them, and whom their invoices go to. */
function ofOneTenant(row, refresh, caller, isNamed) {
  const of = isNamed ? ` of ${row.tenant}` : "";
  const party = row.profile?.party;
  return [
    card(`Terms${of}`, "on top of the price list, when an invoice is drawn", null,
      row.terms ? factsOf(row.terms) : element("p", { class: "muted" },
        "Nothing beyond the price list: you pay for what you use.")),
    card(`Billing address${of}`, "printed on invoices from now on", mayWrite(caller, row)
      ? button(party ? "Change" : "Add", () => editProfile(row, refresh, caller),
        { id: `profile-${row.tenant_id}`, label: `${party ? "Change" : "Add"} the billing address${of}` }) : null,
    party ? facts([
      ["Name", party.name], ["Address", party.address.join(", ")], ["Country", party.country],
      ["Tax number", party.tax_id], ["E-mail", party.email],
      ["Paid in", row.profile.currency || "USD"],
      ["Tax", row.profile.tax_exempt ? "exempt" : "by rule"],
    ]) : element("p", { class: "muted" }, `Invoices carry the name ${row.tenant} alone.`)),
  ];
}

const mayWrite = (caller, row) => caller.is_operator || caller.grants.some((grant) =>
  grant.tenant_id === row.tenant_id && grant.permissions.includes("billing.write"));

function discounts(agreed) {
  if (!agreed) return [];
  return [
    ...(agreed.discount_percent > 0 ? [`${agreed.discount_percent}% off everything`] : []),
    ...agreed.volume.map((step) => `${step.percent}% off what is over ${dollars(step.over.nanousd)}`),
  ];
}

const freeTokens = (agreed) => Object.entries(agreed?.free_tokens ?? {}).map(([model, tokens]) =>
  `${count(tokens)} tokens of ${model}`);

const committed = (agreed) =>
  (agreed && agreed.minimum.nanousd > 0 ? dollars(agreed.minimum.nanousd) : "–");

const linesOf = (lines) => (lines.length === 0 ? "–" : element("ul", { class: "lines" },
  lines.map((line) => element("li", {}, line))));

const factsOf = (agreed) => facts([
  ["Discounts", linesOf(discounts(agreed))],
  ["Free a month", linesOf(freeTokens(agreed))],
  ["Committed a month", committed(agreed)],
]);

function actions(row, refresh) {
  const own = Boolean(row.terms?.tenant_id);
  const path = `/tenants/${row.tenant_id}/terms`;
  return element("div", { class: "actions" },
    button("Terms", () => edit(row.tenant, path, row.terms, refresh),
      { id: `terms-${row.tenant_id}`, label: `Terms of ${row.tenant}` }),
    own ? button("Drop", () => drop(row.tenant, path, refresh),
      { id: `drop-${row.tenant_id}`, label: `Drop the terms of ${row.tenant}` }) : null,
    button("Address", () => editProfile(row, refresh, { is_operator: true }),
      { id: `profile-${row.tenant_id}`, label: `Billing address of ${row.tenant}` }));
}

function edit(name, path, agreed, refresh) {
  ask(`Terms of ${name}`, [
    { name: "discount", label: "Discount, %", type: "number", min: 0, max: 100, step: "any",
      value: agreed?.discount_percent || "", hint: "of everything" },
    { name: "minimum", label: "Committed a month, $", type: "number", min: 0, step: "any",
      value: agreed && agreed.minimum.nanousd > 0 ? agreed.minimum.usd : "",
      hint: "billed also if less is used" },
    { name: "volume", label: "Volume discounts", wide: true, lines: 3, placeholder: "1000 = 5",
      value: (agreed?.volume ?? []).map((step) => `${step.over.usd} = ${step.percent}`).join("\n"),
      hint: "a line each: over so many dollars a month = so many percent" },
    { name: "free", label: "Free tokens a month", wide: true, lines: 3, placeholder: "my-model = 1000000",
      value: Object.entries(agreed?.free_tokens ?? {}).map(([model, n]) => `${model} = ${n}`).join("\n"),
      hint: "a line each: model = tokens" },
  ], "Agree", async ({ discount, minimum, volume, free }) => {
    await change("PUT", path, {
      discount_percent: Number(discount), minimum_usd: minimum || "0",
      volume: pairs(volume).map(([over, percent]) => ({ over_usd: over, percent: number(percent) })),
      free_tokens: Object.fromEntries(pairs(free).map(([model, tokens]) => [model, number(tokens)])),
    });
    await refresh();
  }, { text: "They count on invoices that are drawn from now on; those that are final stay." });
}

/** Lines of `left = right`; the name of a model may have an equals sign, a number has none. */
export function pairs(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const at = line.lastIndexOf("=");
    if (at < 1) throw new Error(`“${line}”: write it as NAME = NUMBER.`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
}

function number(text) {
  const value = Number(text.replaceAll(",", ""));
  if (text === "" || Number.isNaN(value)) throw new Error(`“${text}” is no number.`);
  return value;
}

function drop(name, path, refresh) {
  ask(`Drop the terms of ${name}?`, [], "Drop", async () => {
    await change("DELETE", path);
    await refresh();
  }, { danger: true, text: "Invoices that are final stay as they are." });
}

function editProfile(row, refresh, caller) {
  const { party, currency, tax_exempt: exempt } = row.profile ?? {};
  ask(`Billing address of ${row.tenant}`, [
    { name: "name", label: "Name", value: party?.name, required: true },
    { name: "address", label: "Address", value: party?.address.join(", "), wide: true,
      hint: "its lines, comma-separated" },
    { name: "country", label: "Country", value: party?.country, hint: "two letters, as DE" },
    { name: "tax", label: "Tax number", value: party?.tax_id },
    { name: "email", label: "E-mail", type: "email", value: party?.email },
    { name: "currency", label: "Pays in", value: currency, placeholder: "USD",
      hint: "three letters, as EUR" },
    ...(caller.is_operator ? [{ name: "exempt", label: "Tax", value: exempt ? "yes" : "",
      options: [["", "by rule"], ["yes", "exempt"]] }] : []),
  ], "Save", async (values) => {
    await change("PUT", `/tenants/${row.tenant_id}/billing-profile`, {
      name: values.name, address: split(values.address), country: values.country.toUpperCase(),
      tax_id: values.tax, email: values.email,
      currency: values.currency.toUpperCase() === "USD" ? "" : values.currency.toUpperCase(),
      ...(caller.is_operator ? { tax_exempt: values.exempt === "yes" } : {}),
    });
    await refresh();
  });
}

const split = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);

function sellerCard(seller, refresh) {
  return card("Seller", "who writes the invoices",
    button("Change", () => nameSeller(seller, refresh), { id: "change-seller", label: "Change the seller" }),
    facts([
      ["Name", seller.party.name], ["Address", seller.party.address.join(", ")],
      ["Country", seller.party.country], ["Tax number", seller.party.tax_id],
      ["Days to pay", count(seller.payment_days)],
      ["Numbers", `${seller.number_prefix}-…`], ["Note on payment", seller.payment_note],
    ]));
}

function taxCard(seller, refresh) {
  const save = async (taxes) => {
    await change("PUT", "/seller", sellerBody(seller, { taxes }));
    await refresh();
  };
  return card("Taxes", "the first rule that fits the buyer counts",
    button("Add a tax", () => addTax(seller.taxes, save), { id: "add-tax", look: "primary" }),
    table("Taxes", [
      { label: "Tax", title: true, value: (row) => [element("strong", {}, row.name),
        row.note ? element("div", { class: "muted small" }, row.note) : null] },
      { label: "Rate", number: true, value: (row) => `${row.percent}%` },
      { label: "Buyers of", value: (row) => row.countries?.join(", ") ?? "every country" },
      { label: "With a tax number", value: (row) => (row.without_tax_id_only ? "not charged" : "charged") },
      { label: "", value: (row) => element("div", { class: "actions" },
        button("Remove", () => ask(`Remove ${row.name}?`, [], "Remove",
          () => save(seller.taxes.filter((each) => each !== row)),
          { danger: true, text: "Invoices that are final keep it." }),
        { id: `remove-tax-${seller.taxes.indexOf(row)}`, label: `Remove ${row.name}` })) },
    ], seller.taxes, "No taxes: invoices are net."));
}

function addTax(before, save) {
  ask("Add a tax", [
    { name: "name", label: "Name, as printed", required: true, placeholder: "VAT 19%" },
    { name: "percent", label: "Rate, %", type: "number", min: 0, max: 100, step: "any", required: true },
    { name: "countries", label: "Buyers of", hint: "two letters each, comma-separated; empty: all" },
    { name: "with", label: "Buyers with a tax number", options: [["", "are charged"],
      ["yes", "account for it themselves"]] },
    { name: "place", label: "Place", options: [["last", "after the others"], ["first", "before the others"]] },
    { name: "note", label: "Note below", wide: true,
      placeholder: "Reverse charge: the recipient owes the tax." },
  ], "Add", async (values) => {
    const countries = split(values.countries.toUpperCase());
    const added = {
      name: values.name, percent: Number(values.percent), note: values.note,
      countries: countries.length > 0 ? countries : null, without_tax_id_only: values.with === "yes",
    };
    await save(values.place === "first" ? [added, ...before] : [...before, added]);
  });
}

function currencyCard(seller, refresh) {
  const rates = Object.entries(seller.exchange_rates);
  return card("Currencies", "that buyers may pay in; the books are in dollars",
    button("Set rates", () => setRates(seller, refresh), { id: "set-rates" }),
    table("Exchange rates", [
      { label: "Currency", title: true, value: ([code]) => element("strong", {}, code) },
      { label: "For one dollar", number: true, value: ([, rate]) => rate },
    ], rates, "Dollars alone."));
}

function setRates(seller, refresh) {
  ask("Exchange rates", [
    { name: "rates", label: "Of each currency for one dollar", wide: true, lines: 5,
      placeholder: "EUR = 0.92", hint: "a line each; an invoice keeps the rate it was drawn at",
      value: Object.entries(seller.exchange_rates).map(([code, rate]) => `${code} = ${rate}`).join("\n") },
  ], "Save", async ({ rates }) => {
    await change("PUT", "/seller", sellerBody(seller, { exchange_rates: Object.fromEntries(
      pairs(rates).map(([code, rate]) => [code.toUpperCase(), String(number(rate))])) }));
    await refresh();
  });
}
