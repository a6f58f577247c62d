// Streaming chat against the gateway, several models side by side, and the same request as code.

import { button, element, snippet, to } from "./dom.js";
import { readEvents } from "./events.js";
import { count, seconds } from "./format.js";
import { anthropicCode, codeOf } from "./snippets.js";

const sidesMax = 4;
const toolsExample = [{ type: "function", function: {
  name: "get_weather", description: "The weather of a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
} }];
const kept = { key: "", models: [], sides: [], stop: null }; // of this tab, never stored

/** Use a key that was just made. */
export const keepKey = (key) => { kept.key = key; };

export const playground = {
  title: "Playground", group: "Build", still: true,
  load: async () => ({}),

  render(_, __, caller) {
    kept.sides = [{ letter: "A", history: [] }];
    kept.caller = caller;
    requestAnimationFrame(async () => {
      await loadModels();
      drawCode();
    });
    return element("div", { class: "playground" },
      element("section", { class: "card" }, element("form", {
        id: "chat", class: "stack", submit: (event) => { event.preventDefault(); send(); },
        input: drawCode,
      },
      element("div", { class: "fields" },
        field("play-key", "API key", { type: "password", value: kept.key, placeholder: "hr_…",
          autocomplete: "off", change: loadModels }),
        field("temperature", "Temperature", { type: "number", min: 0, max: 2, step: 0.1, value: 0.7 }),
        field("top-p", "Top p", { type: "number", min: 0, max: 1, step: 0.05, value: 1 }),
        field("max-tokens", "Tokens at most", { type: "number", min: 1, value: 256 }),
        field("seed", "Seed", { type: "number", min: 0, placeholder: "any" }),
        field("system", "System prompt", { placeholder: "empty: none" }, "wide")),
      element("details", {}, element("summary", {}, "Tools"),
        element("label", { for: "tools", class: "muted small" },
          "Functions that the model may call, as OpenAI's API takes them"),
        element("textarea", { id: "tools", class: "mono", rows: 5, spellcheck: "false" }),
        button("Put in an example", () => {
          at("tools").value = JSON.stringify(toolsExample, null, 2);
          drawCode();
        }, { id: "tools-example" })))),
      element("div", { class: "threads", id: "threads" }, thread(kept.sides[0])),
      element("div", { class: "ask-bar" },
        element("label", { for: "prompt", class: "hidden-label" }, "Your message"),
        element("textarea", { id: "prompt", rows: 2, form: "chat", placeholder: "Message",
          keydown: (event) => {
            if (event.key !== "Enter" || event.shiftKey) return;
            event.preventDefault();
            send();
          } }),
        button("Compare", addSide, { id: "compare", label: "Compare with another model" }),
        element("button", { type: "submit", form: "chat", class: "primary", id: "send" }, "Send"),
        element("button", { type: "button", id: "stop", hidden: true,
          click: () => kept.stop?.abort() }, "Stop")),
      element("section", { class: "card stack" }, element("h2", {}, "The same request as code"),
        element("div", { class: "stack", id: "code" })));
  },
};

const at = (id) => document.getElementById(id);

function field(id, label, properties, look = "") {
  return element("div", { class: `field ${look}` }, element("label", { for: id }, label),
    element("input", { id, spellcheck: "false", ...properties }));
}

function thread({ letter }) {
  return element("section", { class: "card thread", id: `thread-${letter}`,
    "aria-label": `Answers of model ${letter}` },
  element("div", { class: "thread-head" },
    element("label", { for: `model-${letter}`, class: "hidden-label" }, `Model ${letter}`),
    element("select", { id: `model-${letter}`, change: drawCode },
      kept.models.length > 0 ? kept.models.map((id) => element("option", { value: id }, id))
        : element("option", { value: "" }, "enter an API key to see its models")),
    letter === "A" ? null : button("Close", () => {
      kept.sides = kept.sides.filter((side) => side.letter !== letter);
      at(`thread-${letter}`).remove();
      at("compare").hidden = false;
    }, { id: `close-${letter}`, look: "quiet", label: `Close model ${letter}` })),
  element("div", { class: "messages", id: `messages-${letter}`, role: "log", tabindex: "0",
    "aria-label": `Conversation ${letter}` },
  element("div", { class: "empty" }, "Ask something below.")));
}

function addSide() {
  const letter = "ABCD".split("").find((each) => !kept.sides.some((side) => side.letter === each));
  const side = { letter, history: [] };
  kept.sides.push(side);
  at("threads").append(thread(side));
  at(`model-${letter}`).selectedIndex = Math.min(kept.sides.length, kept.models.length) - 1;
  at("compare").hidden = kept.sides.length === sidesMax;
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
  kept.models = body.data.map(({ id }) => id);
  for (const { letter } of kept.sides) {
    at(`model-${letter}`)?.replaceChildren(
      ...kept.models.map((id) => element("option", { value: id }, id)));
  }
  drawCode();
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
  const tools = at("tools").value.trim();
  return {
    model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    temperature: number("temperature"), top_p: number("top-p"), max_tokens: number("max-tokens"),
    ...(at("seed").value === "" ? {} : { seed: number("seed") }),
    ...(tools ? { tools: JSON.parse(tools) } : {}),
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
  await Promise.all(kept.sides.map((side) => converse(side, text, kept.stop.signal)));
  kept.stop = null;
  if (!at("send")) return; // another page by now
  at("send").hidden = false;
  at("stop").hidden = true;
}

async function converse({ letter, history }, text, signal) {
  history.push({ role: "user", content: text });
  show(letter, "user", text);
  const bubble = show(letter, "assistant", "");
  const note = element("div", { class: "note" }, "waiting…");
  bubble.after(note);
  const began = performance.now();
  const seen = { text: "", calls: [], first: null, usage: null, id: "" };
  try {
    const answer = await ask("/v1/chat/completions", {
      ...bodyFor(at(`model-${letter}`).value, history),
      stream: true, stream_options: { include_usage: true },
    }, signal);
    seen.id = answer.headers.get("x-request-id") ?? "";
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    for await (const { data } of readEvents(answer.body)) {
      if (data === "[DONE]") break;
      take(JSON.parse(data), seen, began);
      bubble.textContent = shown(seen);
      bubble.parentElement.scrollTop = bubble.parentElement.scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") show(letter, "bad", error.message);
  }
  history.push({ role: "assistant", content: shown(seen) });
  note.replaceChildren(...summary(seen, (performance.now() - began) / 1000));
}

/** Add one chunk to what was seen. */
function take(event, seen, began) {
  if (event.error) throw new Error(event.error.message);
  const delta = event.choices?.[0]?.delta ?? {};
  if ((delta.content || delta.tool_calls) && seen.first === null) {
    seen.first = (performance.now() - began) / 1000;
  }
  seen.text += delta.content ?? "";
  for (const { index, function: part } of delta.tool_calls ?? []) {
    seen.calls[index] ??= { name: "", arguments: "" };
    seen.calls[index].name += part?.name ?? "";
    seen.calls[index].arguments += part?.arguments ?? "";
  }
  seen.usage = event.usage ?? seen.usage;
}

const shown = ({ text, calls }) =>
  [text, ...calls.map((call) => `calls ${call.name}(${call.arguments})`)].filter(Boolean).join("\n");

function summary({ first, usage, id }, whole) {
  const written = usage?.completion_tokens ?? 0;
  const speed = first !== null && written > 1 ? (written - 1) / (whole - first) : null;
  const parts = [
    `first token ${seconds(first)}`, speed ? `${speed.toFixed(1)} tokens/s` : "",
    usage ? `${count(usage.prompt_tokens)} in, ${count(written)} out` : "stopped",
  ].filter(Boolean).join(" · ");
  return [parts, ...(id && kept.caller.is_operator
    ? [" · ", to("why there", "explain", { request: id })] : id ? [` · ${id}`] : [])];
}

function show(letter, kind, text) {
  const box = at(`messages-${letter}`);
  box.querySelector(".empty")?.remove();
  const bubble = element("div", { class: `message ${kind}` }, text);
  box.append(bubble);
  box.scrollTop = box.scrollHeight;
  return bubble;
}

function drawCode() {
  if (!at("code")) return;
  const last = at("prompt").value.trim() || "Hello!";
  let body;
  try {
    body = bodyFor(at("model-A").value || "MODEL", [{ role: "user", content: last }]);
  } catch {
    at("code").replaceChildren(element("p", { class: "problem" }, "The tools are not valid JSON."));
    return;
  }
  const gateway = kept.caller.gateway;
  const code = codeOf(gateway, body);
  at("code").replaceChildren(
    element("h3", {}, "curl"), snippet(code.curl, "this request with curl"),
    element("h3", {}, "Python, openai"), snippet(code.python, "this request with Python"),
    element("h3", {}, "Python, anthropic"),
    snippet(anthropicCode(gateway, body), "this request with the anthropic package"));
}
