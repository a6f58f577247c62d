// Requests as code, with this platform's own address and model.

/** One chat request as curl and as Python with the openai package. */
export function codeOf(gateway, body) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return {
    curl: [
      `curl ${gateway}/v1/chat/completions \\`,
      "  -H \"Authorization: Bearer $HEADRACE_API_KEY\" \\",
      "  -H \"Content-Type: application/json\" \\",
      `  -d '${quoted}'`,
    ].join("\n"),
    python: [
      "from openai import OpenAI", "",
      `client = OpenAI(base_url="${gateway}/v1", api_key="hr_...")`,
      "answer = client.chat.completions.create(", ...fields(body), ")",
      body.tools ? "print(answer.choices[0].message.tool_calls)"
        : "print(answer.choices[0].message.content)",
    ].join("\n"),
  };
}

/** The same with the anthropic package, which adds the path itself. */
export function anthropicCode(gateway, body) {
  const { messages, tools, max_tokens: most = 256, ...rest } = body;
  const system = messages.find((message) => message.role === "system")?.content;
  const asked = {
    ...rest, max_tokens: most, ...(system ? { system } : {}),
    messages: messages.filter((message) => message.role !== "system"),
    ...(tools ? { tools: tools.map(({ function: tool }) => ({
      name: tool.name, description: tool.description, input_schema: tool.parameters,
    })) } : {}),
  };
  return [
    "from anthropic import Anthropic", "",
    `client = Anthropic(base_url="${gateway}", api_key="hr_...")`,
    "answer = client.messages.create(", ...fields(asked), ")",
    tools ? "print(answer.content)" : "print(answer.content[0].text)",
  ].join("\n");
}

const fields = (values) => Object.entries(values)
  .map(([name, value]) => `    ${name}=${python(value, "    ")},`);

/** A JSON value as Python writes it; short ones on one line. */
function python(value, indent) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const deeper = `${indent}    `;
  const parts = isList ? value.map((item) => python(item, deeper))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item, deeper)}`);
  const [open, close] = isList ? "[]" : "{}";
  const line = open + parts.join(", ") + close;
  if (line.length <= 72 && !line.includes("\n")) return line;
  return `${open}\n${parts.map((part) => `${deeper}${part},\n`).join("")}${indent}${close}`;
}
