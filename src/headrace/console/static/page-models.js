// Logical models, where their weights come from, and what they cost.

import { list } from "./api.js";
import { element, table } from "./dom.js";
import { age, count } from "./format.js";

export const models = {
  title: "Models", group: "Operate", needs: "operator",

  async load() {
    const [known, prices] = await Promise.all([list("/models"), list("/prices")]);
    return { known, prices };
  },

  render({ known, prices }) {
    const now = Date.now();
    const current = prices.filter((book) => Date.parse(book.effective_time) <= now)
      .sort((a, b) => Date.parse(b.effective_time) - Date.parse(a.effective_time));
    const priceOf = (model) => current.find((book) => model in book.prices)?.prices[model];
    const versions = known.flatMap((model) =>
      model.versions.map((version) => ({ ...version, model: model.name })));
    return [
      element("section", { class: "card" },
        element("div", { class: "card-head" }, element("h2", {}, "Models"),
          element("span", { class: "muted small" }, "prices in dollars a million tokens")),
        table("Models and prices", [
          { label: "Model", title: true, value: (row) => element("strong", {}, row.name) },
          { label: "Aliases", value: (row) => row.aliases?.join(", ") || "–" },
          { label: "Versions", number: true, value: (row) => count(row.versions.length) },
          { label: "Input", number: true, value: (row) => price(priceOf(row.name)?.input_usd_per_million) },
          { label: "Cached input", number: true, value: (row) => price(priceOf(row.name)?.cached_input_usd_per_million) },
          { label: "Output", number: true, value: (row) => price(priceOf(row.name)?.output_usd_per_million) },
          { label: "Created", number: true, value: (row) => age(row.create_time) },
        ], known, ["No models yet.",
          element("code", {}, "headrace models create NAME --source SOURCE")])),
      element("section", { class: "card" },
        element("h2", {}, "Versions"),
        table("Model versions", [
          { label: "Version", title: true, value: (row) =>
            element("strong", {}, `${row.model} @ ${row.name}`) },
          { label: "Source", value: (row) => element("span", { class: "mono breakable" }, row.source) },
          { label: "SHA-256", value: (row) => element("span", { class: "mono", title: row.sha256 },
            row.sha256 ? `${row.sha256.slice(0, 12)}…` : "–") },
          { label: "Context", number: true, value: (row) =>
            row.context_length ? count(row.context_length) : "the file's" },
          { label: "Traffic weight", number: true, value: (row) => count(row.weight) },
        ], versions, "No versions yet.")),
    ];
  },
};

function price(text) {
  return text === undefined ? "unpriced" : `$${text}`;
}
