// How a customer's first request looks, with this platform's own address and model.

import { get, list } from "./api.js";
import { card, element, snippet, to } from "./dom.js";
import { anthropicCode, codeOf } from "./snippets.js";

export const start = {
  title: "Quick start", group: "Build",

  async load(caller) {
    if (caller.is_operator) return { models: (await list("/models")).map((model) => model.name) };
    const usage = await get(`/usage?by=model&${caller.view.usage}`);
    return { models: usage.items.map((item) => item.model) };
  },

  render({ models }, _, caller) {
    const body = { model: models[0] ?? "MODEL", messages: [{ role: "user", content: "Hello!" }] };
    const code = codeOf(caller.gateway, body);
    return [
      card("1. Get a key", "it is shown once", null, element("div", { class: "stack" },
        element("p", {}, "Create one under ", element("a", { href: "#/keys" }, "API keys"),
          ", or with the command line:"),
        snippet("headrace keys create --project TENANT/PROJECT", "the command that creates a key"))),
      card("2. Ask", `at ${caller.gateway}; every OpenAI and Anthropic client works unchanged`, null,
        element("div", { class: "stack" },
          element("h3", {}, "curl"), snippet(code.curl, "a request with curl"),
          element("h3", {}, "Python, openai"), snippet(`# pip install openai\n${code.python}`,
            "a request with Python"),
          element("h3", {}, "Python, anthropic"), snippet(`# pip install anthropic\n${
            anthropicCode(caller.gateway, body)}`, "a request with the anthropic package"))),
      card("3. See it", "within a second", null, element("p", {},
        "What was asked is under ", to("Requests", "requests"), ", its sums under ",
        to("Usage", "usage"), ", and how near your limits are under ", to("Limits", "limits"), ".")),
    ];
  },
};
