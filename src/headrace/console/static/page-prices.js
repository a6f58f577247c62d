// Price books: what tokens cost by class and length of prompt, and what is not sold by token.

import { change, list } from "./api.js";
import { ask } from "./dialog.js";
import { badge, button, card, element, table } from "./dom.js";
import { count, moment } from "./format.js";

const perMillion = "_usd_per_million";
const classes = { reasoning: "reasoning", draft: "drafts", embedding: "embeddings", image: "images read" };
const units = { request: "a request", image: "an image", second: "a second of sound",
  character: "a character read aloud" };

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
    return card("Prices", "dollars a million tokens; a price book never changes, a newer one counts",
      button("Add prices", () => add(models, tenants, refresh), { id: "add-prices", look: "primary" }),
      table("Prices", [
        { label: "Model", title: true, value: (row) => [element("strong", {}, row.model),
          row.when ? element("div", { class: "muted small" }, row.when) : null] },
        { label: "Input", number: true, value: byToken("input") },
        { label: "Cached input", number: true, value: byToken("cached_input") },
        { label: "Output", number: true, value: byToken("output") },
        { label: "Also", value: (row) => also(row).map((text) => element("div", {}, text)) },
        { label: "For", value: (row) => (row.book.tenant_id ? nameOf(row.book.tenant_id) : "everybody") },
        { label: "From (UTC)", value: (row) => [moment(row.book.effective_time),
          Date.parse(row.book.effective_time) > Date.now() ? [" ", badge("later", "idle")] : null] },
        { label: "Price book", value: (row) => [
          element("span", { class: "mono breakable" }, row.book.name),
          shares(row.book).map((text) => element("div", { class: "muted small" }, text))] },
      ], rows, "No prices yet. Requests of an unpriced model wait as unrated."));
  },
};

/** What costs nothing by token, and something by another unit, is not sold by token. */
const byToken = (name) => (row) => (
  Object.keys(units).some((unit) => row[`usd_per_${unit}`] != null)
    && row.input_nanousd_per_million === 0 && row.output_nanousd_per_million === 0
    ? "–" : `$${row[name + perMillion]}`);

/** The prices that have no column of their own. */
function also(row) {
  const byClass = Object.entries(classes).filter(([name]) =>
    row[`${name}_nanousd_per_million`] != null).map(([name, text]) =>
    `$${row[`${name}_nanousd_per_million`] / 1e9} ${text}`);
  const byUnit = Object.entries(units).filter(([name]) => row[`usd_per_${name}`] != null)
    .map(([name, text]) => `$${row[`usd_per_${name}`]} ${text}`);
  return [...byUnit, ...byClass];
}

/** What a book says of priorities, regions and the currency that its amounts were quoted in. */
function shares(book) {
  const percents = Object.entries({ ...book.priority_percent, ...book.region_percent })
    .map(([name, percent]) => `${name} at ${percent}%`);
  return [...percents, ...(book.currency ? [`quoted in ${book.currency}`] : [])];
}

function add(models, tenants, refresh) {
  const usd = { type: "number", min: 0, step: "any" };
  ask("Add prices", [
    { name: "model", label: "Model", options: models.map((model) => [model.name, model.name]) },
    { name: "tenant", label: "For", options: [["", "everybody"],
      ...tenants.map((tenant) => [tenant.id, tenant.name])] },
    { name: "input", label: "Input, $ a million", ...usd },
    { name: "cached", label: "Cached input", ...usd, hint: "empty: as input" },
    { name: "output", label: "Output, $ a million", ...usd },
    { name: "from", label: "From (UTC)", type: "datetime-local", hint: "empty: now" },
    ...Object.entries(units).map(([name, text]) => (
      { name, label: `$ ${text}`, ...usd, hint: "empty: not sold so" })),
    { name: "tiers", label: "Longer prompts", wide: true, lines: 2, placeholder: "32000 = 0.20, 0.60",
      hint: "a line each: over so many tokens = input, output, and cached input if it costs less" },
  ], "Add", async ({ model, tenant, from, ...fields }) => {
    await change("POST", "/prices", {
      tenant: tenant || null, effective_time: from ? `${from}Z` : null,
      prices: { [model]: priceOf(fields) },
    });
    await refresh();
  }, { text: "What was used before keeps its price. Other classes, regions and priorities are set with "
    + "a file: headrace prices apply -f FILE." });
}

/** What the dialog says, as the API takes it: what is left empty is left out. */
function priceOf({ input, cached, output, tiers, ...byUnit }) {
  const given = { input_usd_per_million: input, cached_input_usd_per_million: cached,
    output_usd_per_million: output };
  for (const [name, amount] of Object.entries(byUnit)) given[`usd_per_${name}`] = amount;
  const price = Object.fromEntries(Object.entries(given).filter(([, amount]) => amount !== ""));
  if (!(input && output) && Object.values(byUnit).every((amount) => amount === "")) {
    throw new Error("Give what input and output cost, or a price by another unit.");
  }
  const steps = tiers.split("\n").map((line) => line.trim()).filter(Boolean).map(tierOf);
  return steps.length > 0 ? { ...price, context_tiers: steps } : price;
}

function tierOf(line) {
  const found = /^(\d+)\s*=\s*([\d.]+)\s*,\s*([\d.]+)(?:\s*,\s*([\d.]+))?$/.exec(line);
  if (!found) throw new Error(`“${line}”: write it as TOKENS = INPUT, OUTPUT.`);
  return { over_prompt_tokens: Number(found[1]), input_usd_per_million: found[2],
    output_usd_per_million: found[3], cached_input_usd_per_million: found[4] ?? null };
}
