// Logical models: what they point at, what they cost, and whether they keep their objectives.

import { change, get, list } from "./api.js";
import { ask } from "./dialog.js";
import { badge, button, card, element, table, to } from "./dom.js";
import { count, share } from "./format.js";
import { goodputTable } from "./goodput.js";

export const models = {
  title: "Models", group: "Operate", needs: "operator", ticks: true,

  async load() {
    const [known, prices, goodput] = await Promise.all([
      list("/models"), list("/prices"), get("/goodput").catch(() => ({ items: [] })),
    ]);
    return { known, prices, goodput: goodput.items };
  },

  render({ known, prices, goodput }, refresh) {
    const now = Date.now();
    const current = prices.filter((book) => Date.parse(book.effective_time) <= now && !book.tenant_id)
      .sort((a, b) => Date.parse(b.effective_time) - Date.parse(a.effective_time));
    const priceOf = (model) => current.find((book) => model in book.prices)?.prices[model];
    const versions = known.flatMap((model) =>
      model.versions.map((version) => ({ ...version, model: model.name })));
    return [
      card("Models", "what customers ask for; prices in dollars a million tokens",
        button("Add model", () => add(refresh), { id: "add-model", look: "primary" }),
        table("Models and prices", [
          { label: "Model", title: true, value: (row) => [
            to(element("strong", {}, row.name), "requests", { model: row.name }),
            row.active === false ? [" ", badge("off", "idle")] : null] },
          { label: "Aliases", value: (row) => row.aliases?.join(", ") || "–" },
          { label: "Falls back to", value: (row) => row.fallbacks?.join(", ") || "–" },
          { label: "Input", number: true, value: (row) => price(priceOf(row.name)?.input_usd_per_million) },
          { label: "Cached", number: true, value: (row) => price(priceOf(row.name)?.cached_input_usd_per_million) },
          { label: "Output", number: true, value: (row) => price(priceOf(row.name)?.output_usd_per_million) },
          { label: "", value: (row) => element("div", { class: "actions" },
            button("Edit", () => edit(row, refresh),
              { id: `edit-${row.id}`, label: `Edit ${row.name}` })) },
        ], known, ["No models yet.",
          element("code", {}, "headrace models create NAME --source SOURCE")])),
      card("Service levels", "goodput: requests that finished within their model's objectives", null,
        goodputTable(goodput)),
      card("Versions", "immutable; traffic is shared by weight", null,
        table("Model versions", [
          { label: "Version", title: true, value: (row) =>
            element("strong", {}, `${row.model} @ ${row.name}`) },
          { label: "Source", value: (row) => element("span", { class: "mono breakable" }, row.source) },
          { label: "SHA-256", value: (row) => element("span", { class: "mono", title: digestsOf(row) },
            row.sha256 ? `${row.sha256.slice(0, 12)}…` : "–",
            row.files?.length > 1 ? ` of ${count(row.files.length)} files` : null) },
          { label: "Made by", value: (row) => row.created_by || "–" },
          { label: "Family", value: (row) => row.header?.family || "–" },
          { label: "Abilities", value: (row) => [row.capabilities.join(", ") || "–",
            ...row.contradictions.map((words) => [" ", badge(words, "warn")])] },
          { label: "Context", number: true, value: (row) =>
            contextOf(row) ? count(contextOf(row)) : "the file's" },
          { label: "Share", number: true, value: (row) => shareOf(row, versions) },
        ], versions, "No versions yet.")),
    ];
  },
};

function price(text) {
  return text === undefined ? badge("unpriced", "warn") : `$${text}`;
}

function digestsOf(version) {
  const files = version.files ?? [];
  return [version.sha256, ...files.map((file) =>
    `${file.sha256}  ${file.name}  ${count(file.size_bytes)} bytes`)].filter(Boolean).join("\n");
}

function contextOf(version) {
  return version.context_length ?? version.header?.context_length;
}

function shareOf(version, all) {
  const whole = all.filter((each) => each.model === version.model)
    .reduce((sum, each) => sum + each.weight, 0);
  return whole === 0 ? "none" : share(version.weight / whole);
}

function add(refresh) {
  ask("Add a model", [
    { name: "name", label: "Name", required: true, hint: "as customers will call it" },
    { name: "source", label: "Source of its first version", required: true, wide: true,
      placeholder: "a catalogue name, hf://owner/repo/file.gguf or a path" },
  ], "Add", async (values) => {
    await change("POST", "/models", values);
    await refresh();
  }, { text: "Deploy it under Deployments; give it a price under Prices." });
}

function edit(model, refresh) {
  const seconds = { type: "number", min: 0, step: "any", hint: "empty: no objective" };
  const words = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);
  ask(`Edit ${model.name}`, [
    { name: "aliases", label: "Aliases", value: model.aliases?.join(", "), hint: "comma-separated" },
    { name: "fallbacks", label: "Falls back to", value: model.fallbacks?.join(", ") },
    { name: "ttft", label: "First token within, s", value: model.objectives?.ttft_s, ...seconds },
    { name: "gap", label: "Between tokens, s", value: model.objectives?.inter_token_s, ...seconds },
  ], "Save", async ({ aliases, fallbacks, ttft, gap }) => {
    const number = (text) => (text === "" ? null : Number(text));
    await change("PATCH", `/models/${model.id}`, {
      aliases: words(aliases), fallbacks: words(fallbacks),
      objectives: ttft || gap ? { ttft_s: number(ttft), inter_token_s: number(gap) } : null,
    });
    await refresh();
  }, { text: "Every gateway knows within seconds." });
}
