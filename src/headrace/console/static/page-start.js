// How a customer's first request looks, with this platform's own address and model.

import { get, list } from "./api.js";
import { element, snippet } from "./dom.js";

export const start = {
  title: "Quick start",

  async load() {
    const [status, models] = await Promise.all([get("/status"), list("/models")]);
    return { address: status.gateway_url, models };
  },

  render({ address, models }) {
    return [element("section", { class: "card stack" },
      element("h2", {}, "The first request"), quickStart({ gateway_url: address }, models))];
  },
};

/** The steps from a key to an answer. */
export function quickStart(status, models) {
  const gateway = status.gateway_url ?? `${location.protocol}//${location.hostname}:8080`;
  const model = models[0]?.name ?? "MODEL";
  return [
    element("p", { class: "muted" }, "Create a key, then ask from anything that speaks the OpenAI API."),
    snippet("headrace keys create --project PROJECT", "the command that creates a key"),
    snippet([
      `curl ${gateway}/v1/chat/completions \\`,
      "  -H \"Authorization: Bearer $HEADRACE_API_KEY\" \\",
      "  -H \"Content-Type: application/json\" \\",
      `  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello!"}]}'`,
    ].join("\n"), "a request with curl"),
    snippet([
      "from openai import OpenAI",
      "",
      `client = OpenAI(base_url="${gateway}/v1", api_key="hr_...")`,
      "answer = client.chat.completions.create(",
      `    model="${model}",`,
      "    messages=[{\"role\": \"user\", \"content\": \"Hello!\"}],",
      ")",
      "print(answer.choices[0].message.content)",
    ].join("\n"), "a request with Python"),
  ];
}
