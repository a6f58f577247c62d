// Streaming chat against the gateway, two models side by side, and the same request as code.

import { element, snippet } from "./dom.js";
import { count, seconds } from "./format.js";
import { codeOf } from "./snippets.js";

const sides = ["A", "B"];
const kept = { key: "", histories: { A: [], B: [] }, stop: null }; // of this tab, never stored

/** Use a key that was just made. */
export const keepKey = (key) => { kept.key = key; };

export const playground = {
  title: "Playground", group: "Build", still: true,
  load: async () => ({}),

  render(_, __, caller) {
    kept.histories = { A: [], B: [] };
    const code = element("div", { class: "stack" });
    const view = element("div", { class: "playground" },
      element("section", { class: "card" }, element("form", {
        id: "chat", class: "stack", submit: (event) => { event.preventDefault(); send(); },
        input: () => code.replaceChildren(...snippets(caller.gateway)),
      },
      element("div", { class: "fields" },
        field("play-key", "API key", { type: "password", value: kept.key, placeholder: "hr_…",
          autocomplete: "off", change: loadModels }),
        choice("model-A", "Model", []), choice("model-B", "Compare with", [["", "nothing"]]),
        field("temperature", "Temperature", { type: "number", min: 0, max: 2, step: 0.1, value: 0.7 }),
        field("top-p", "Top p", { type: "number", min: 0, max: 1, step: 0.05, value: 1 }),
        field("max-tokens", "Tokens at most", { type: "number", min: 1, value: 256 }),
        field("system", "System prompt", { placeholder: "empty: none" }, "wide")))),
      element("div", { class: "threads", id: "threads" }, sides.map((side) =>
        element("section", { class: "card thread", id: `thread-${side}`, hidden: side === "B",
          "aria-label": `Answers of model ${side}` },
        element("div", { class: "messages", id: `messages-${side}`, role: "log", tabindex: "0",
          "aria-label": `Conversation ${side}` },
        element("div", { class: "empty" }, "Ask something below."))))),
      element("div", { class: "ask-bar" },
        element("label", { for: "prompt", class: "hidden-label" }, "Your message"),
        element("textarea", { id: "prompt", rows: 2, form: "chat", placeholder: "Message",
          keydown: (event) => {
            if (event.key !== "Enter" || event.shiftKey) return;
            event.preventDefault();
            send();
          } }),
        element("button", { type: "submit", form: "chat", class: "primary", id: "send" }, "Send"),
        element("button", { type: "button", id: "stop", hidden: true,
          click: () => kept.stop?.abort() }, "Stop")),
      element("section", { class: "card" }, element("h2", {}, "The same request as code"), code));
    requestAnimationFrame(async () => {
      await loadModels();
      code.replaceChildren(...snippets(caller.gateway));
    });
    return view;
  },
};

const at = (id) => document.getElementById(id);

function field(id, label, properties, look = "") {
  return element("div", { class: `field ${look}` }, element("label", { for: id }, label),
    element("input", { id, spellcheck: "false", ...properties }));
}

function choice(id, label, options) {
  return element("div", { class: "field" }, element("label", { for: id }, label),
    element("select", { id, change: () => { at("thread-B").hidden = !at("model-B").value; } },
      options.map(([value, text]) => element("option", { value }, text))));
}

async function loadModels() {
  kept.key = at("play-key").value.trim();
  if (!kept.key) return;
  const answer = await ask("/v1/models", undefined, undefined).catch(() => null);
  const body = await answer?.json().catch(() => null);
  if (!answer?.ok || !body) {
    show("A", "bad", body?.error?.message ?? "The gateway does not answer.");
    return;
  }
  const options = body.data.map(({ id }) => element("option", { value: id }, id));
  at("model-A")?.replaceChildren(...options);
  at("model-B")?.replaceChildren(element("option", { value: "" }, "nothing"),
    ...options.map((option) => option.cloneNode(true)));
  if (at("thread-B")) at("thread-B").hidden = true;
  at("chat").dispatchEvent(new Event("input"));
}

function ask(path, body, signal) {
  return fetch(`/admin/v1/playground${path}`, {
    method: body ? "POST" : "GET", signal, cache: "no-store",
    headers: { "x-headrace-console": "1", "x-headrace-key": kept.key },
    body: body && JSON.stringify(body),
  });
}

function bodyFor(model, messages) {
  const number = (id) => Number(at(id).value);
  const system = at("system").value.trim();
  return {
    model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    temperature: number("temperature"), top_p: number("top-p"), max_tokens: number("max-tokens"),
  };
}

async function send() {
  const text = at("prompt").value.trim();
  if (!text || kept.stop) return;
  kept.key = at("play-key").value.trim();
  at("prompt").value = "";
  kept.stop = new AbortController();
  at("send").hidden = true;
  at("stop").hidden = false;
  const asked = sides.filter((side) => at(`model-${side}`).value);
  await Promise.all(asked.map((side) => converse(side, text, kept.stop.signal)));
  kept.stop = null;
  if (!at("send")) return; // another page by now
  at("send").hidden = false;
  at("stop").hidden = true;
}

async function converse(side, text, signal) {
  const history = kept.histories[side];
  history.push({ role: "user", content: text });
  show(side, "user", text);
  const bubble = show(side, "assistant", "");
  const note = element("div", { class: "note" }, "waiting…");
  bubble.after(note);
  const began = performance.now();
  const seen = { text: "", first: null, usage: null, id: "" };
  try {
    const answer = await ask("/v1/chat/completions", {
      ...bodyFor(at(`model-${side}`).value, history),
      stream: true, stream_options: { include_usage: true },
    }, signal);
    seen.id = answer.headers.get("x-request-id") ?? "";
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    await read(answer.body, (event) => {
      if (event.error) throw new Error(event.error.message);
      const piece = event.choices?.[0]?.delta?.content ?? "";
      if (piece && seen.first === null) seen.first = (performance.now() - began) / 1000;
      seen.text += piece;
      seen.usage = event.usage ?? seen.usage;
      bubble.textContent = seen.text;
      bubble.parentElement.scrollTop = bubble.parentElement.scrollHeight;
    });
  } catch (error) {
    if (error.name !== "AbortError") show(side, "bad", error.message);
  }
  history.push({ role: "assistant", content: seen.text });
  note.textContent = summary(seen, (performance.now() - began) / 1000);
}

function summary({ first, usage, id }, whole) {
  const written = usage?.completion_tokens ?? 0;
  const speed = first !== null && written > 1 ? (written - 1) / (whole - first) : null;
  return [
    `first token ${seconds(first)}`, speed ? `${speed.toFixed(1)} tokens/s` : "",
    usage ? `${count(usage.prompt_tokens)} in, ${count(written)} out` : "stopped", id,
  ].filter(Boolean).join(" · ");
}

async function read(stream, take) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of stream) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data: ") ? line.slice(6).trim() : "";
      if (data && data !== "[DONE]") take(JSON.parse(data));
    }
  }
}

function show(side, kind, text) {
  const box = at(`messages-${side}`);
  box.querySelector(".empty")?.remove();
  const bubble = element("div", { class: `message ${kind}` }, text);
  box.append(bubble);
  box.scrollTop = box.scrollHeight;
  return bubble;
}

function snippets(gateway) {
  const last = at("prompt").value.trim() || "Hello!";
  const body = bodyFor(at("model-A").value || "MODEL", [{ role: "user", content: last }]);
  const code = codeOf(gateway, body);
  return [snippet(code.curl, "this request with curl"),
    snippet(code.python, "this request with Python")];
}
