// Requests as code, with this platform's own address and model.

/** One chat request as curl and as Python with the openai package. */
export function codeOf(gateway, body) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const values = Object.entries(body).map(([name, value]) =>
    `    ${name}=${JSON.stringify(value)},`);
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
      "answer = client.chat.completions.create(", ...values, ")",
      "print(answer.choices[0].message.content)",
    ].join("\n"),
  };
}

/** The same with the anthropic package, which adds the path itself. */
export function anthropicCode(gateway, model) {
  return [
    "from anthropic import Anthropic", "",
    `client = Anthropic(base_url="${gateway}", api_key="hr_...")`,
    "answer = client.messages.create(",
    `    model="${model}",`, "    max_tokens=256,",
    "    messages=[{\"role\": \"user\", \"content\": \"Hello!\"}],", ")",
    "print(answer.content[0].text)",
  ].join("\n");
}
