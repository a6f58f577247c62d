"""The reference page of the API: every route, and every parameter by endpoint, from the types.

python -m headrace.engine_server.reference_page > docs/reference/api.md
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.clock import SystemClock
from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.routes import Access, Route
from headrace.engine_server.service import ModelService, ServiceConfig
from headrace.protocol import anthropic, ollama, parsing, responses_api
from headrace.protocol.reasoning import reasoning_formats
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.protocol.tool_parsers import tool_formats

Unsupported = Mapping[str, tuple[object, ...]]

# Each column: its title, the type that is parsed, and the fields that are refused by name.
columns: Sequence[tuple[str, type[msgspec.Struct], Unsupported]] = (
    ("chat", ChatRequest, parsing.unsupported_fields),
    ("completions", CompletionRequest, parsing.unsupported_fields),
    ("responses", responses_api.ResponsesRequest, responses_api.unsupported_fields),
    ("messages", anthropic.MessagesRequest, anthropic.unsupported_fields),
    ("ollama chat", ollama.OllamaChatRequest, ollama.unsupported_fields),
    ("ollama generate", ollama.OllamaGenerateRequest, ollama.unsupported_fields),
)
works, refused, unknown = "yes", "400", ""
access_words = {
    Access.KEY: "key",
    Access.OPERATOR: "key, always",
    Access.PUBLIC: "nobody asks",
}

introduction = """# The API of `headrace serve`

Made by `python -m headrace.engine_server.reference_page` from the types that parse requests; a test
fails when this page is not what that command prints, another asks a real server for every cell of
the table of parameters. The same as an OpenAPI document: `GET /openapi.json`.

Every route but the public ones asks for the key in `HEADRACE_API_KEY`, if it is set, as
`Authorization: Bearer KEY` or `x-api-key: KEY`. Errors have OpenAI's shape,
`{"error": {"message", "type", "param", "code"}}`; those of Anthropic's and Ollama's routes have
theirs. A field that does not work is refused by name with 400, and never passed over in silence.
"""

operators_introduction = """## The operator's listener

With `--admin-port` a server has a second listener, on this machine unless `--admin-host` says
otherwise, with a key of its own. Routes that vLLM has are named as there. While a server is paused
or asleep its API answers 503 with a `Retry-After`, and `/readyz` says so.

* `/sleep` and `/pause` refuse new requests, and return when those that run have ended; with
  `?mode=abort` they are ended with 503. After `?timeout_s` (60) a sleep is given up with 409, and
  a pause goes on with 409. `/sleep?level=1` gives the KV cache's memory back, `level=2` ends the
  engine process; `/wake_up` returns when requests are taken again. `/pause` also forgets the prefix
  cache, unless `?clear_cache=false`.
* `/v1/load_lora_adapter` takes `lora_name` and `lora_path`, a GGUF file or a directory in PEFT's
  layout; with `load_inplace` the adapter takes a loaded one's name. Requests that run keep what
  they began with, and its memory is free when they have ended. See docs/concepts/adapters.md.
* `/reset_prefix_cache` takes `cache_salt` for one tenant's part; without a body all is forgotten.
"""

notes = """## What parameters mean where it is not plain

* `n`, `best_of` and several prompts: the answers of a prompt share its computation. The prompt's
  tokens are counted once, all generated tokens are, also of answers that `best_of` does not send.
  Answer `i` of a seeded request is that of a request alone with `seed + i`.
* Stop strings are looked for in all text that the model writes, its thoughts and calls included;
  the earliest match ends the answer, and nothing is computed after it. `stop_reason` of the choice
  is the stop string that did.
* `min_tokens` above the output limit is a 400. Stop strings do not match in the first `min_tokens`.
* `tool_choice`: `required` and a named function are enforced by grammar, each call's arguments by
  the function's schema. With `parallel_tool_calls: false` an answer ends after its first call.
  Arguments without content are `{}`. `finish_reason` is `tool_calls` where calls were made and the
  answer came to its own end; `length` wins.
* Thoughts come as `reasoning_content` and, the same, as `reasoning`; `include_reasoning: false`
  leaves them out, they are counted all the same. `reasoning_effort: "none"` asks the template for
  an answer without thoughts, where it can.
* `reasoning_budget`, and `budget_tokens` of Anthropic's `thinking`: after so many tokens of its
  first thought a model can only end it. A model that does not think keeps any budget; for one that
  writes the end of a thought as several tokens it is a 400.
* `dry_multiplier` above 0 lowers the logit of a token that would make a repetition of `length`
  tokens longer by `dry_multiplier * dry_base ^ (length - dry_allowed_length)`; a token that has one
  of `dry_sequence_breakers` in it ends a repetition. By default 1.75, 2, and line ends, colons,
  double quotes and asterisks.
* `suffix`: the answer fills the gap between `prompt` and it, asked for with the model's own tokens
  (Qwen2.5-Coder, StarCoder, CodeLlama, DeepSeek, Codestral and others; `supported_parameters` of
  `/v1/models` has it where there are some, else it is a 400). Control tokens in either text are
  plain characters. Not with `echo` or `truncate_prompt_tokens`.
* `response_format` of type `structural_tag` takes `structures` with `triggers`, or `format`; text
  outside the tags is free, a trigger can only go on as one of its tags.
* `typical_p` and XTC (`xtc_probability`, `xtc_threshold`, 0.1 by default) act where
  `docs/concepts/sampling.md` says, also together with DRY.
* Sampling is a function of the seed and the token's position alone, with these parameters, too: the
  same request has the same answer at any load.
* Where grammar, bans and `allowed_token_ids` leave no token, the request fails with 400.
* `truncate_prompt_tokens` keeps the prompt's last tokens; the header
  `x-headrace-dropped-prompt-tokens` says how many were cut. Without it nothing is ever cut.
* `priority` is for callers with the key; 0 is the highest class.
* `kv_transfer_params` is for callers with the key: it names an engine to connect to
  (docs/concepts/disaggregation.md).
* `deadline_ms` counts from the arrival; what is unfinished then fails with 504.
* `max_tokens: 0` with `echo` computes the prompt alone, for its log-probabilities.
* `/v1/responses` keeps responses in memory, 1,000 of them or 64 MiB; the oldest go first.
"""


def page() -> str:
    """The whole page, in Markdown."""
    parts = [
        introduction,
        "## Routes\n",
        _routes_table(all_routes()),
        operators_introduction,
        _routes_table(operators_routes()),
        _parameters_table(),
        notes,
        _parsers(),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def all_routes() -> tuple[Route, ...]:
    """The routes of a server, of which none is asked for anything."""
    return _app().table.routes


def operators_routes() -> tuple[Route, ...]:
    """The routes of the operator's listener."""
    return _app().admin("key").table.routes


def _app() -> EngineServerApp:
    nothing = EngineConfig(
        "", kv_tokens=0, sequences_max=0, step_rows=0, waiting_max=0, cache_namespace=""
    )
    config = ServiceConfig(Path(), "model", nothing)
    return EngineServerApp(ModelService(config, SystemClock()), None)


def _routes_table(routes: Sequence[Route]) -> str:
    lines = ["| method | path | what it is | who may ask |", "|---|---|---|---|"]
    for route in routes:
        path = route.path.replace("...}", "}")
        who = access_words[route.access]
        lines.append(f"| {route.method} | `{path}` | {route.summary} | {who} |")
    return "\n".join(lines)


def _parameters_table() -> str:
    """Each field by endpoint; the type is that of the first endpoint that has it."""
    kinds: dict[str, str] = {}
    for _, request, _ in columns:
        kinds = {**_kinds_of(request), **kinds}
    for _, _, unsupported in columns:
        kinds = {**dict.fromkeys(unsupported, ""), **kinds}
    titles = " | ".join(title for title, _, _ in columns)
    lines = [
        "## Parameters",
        "",
        f"`{works}`: it works. `{refused}`: it is known, and refused by name unless it asks for "
        "nothing. Empty: it is unknown there, and refused.",
        "",
        f"| parameter | type | {titles} |",
        "|---|---|" + "---|" * len(columns),
    ]
    for name in sorted(kinds):
        marks = " | ".join(_mark(name, request, fields) for _, request, fields in columns)
        lines.append(f"| `{name}` | {kinds[name]} | {marks} |")
    return "\n".join(lines)


def _mark(name: str, request: type[msgspec.Struct], unsupported: Unsupported) -> str:
    if name in request.__struct_fields__:
        return works
    return refused if name in unsupported else unknown


def _parsers() -> str:
    return (
        "## Parsers\n\n"
        "The chat template tells how a model writes calls and thoughts; `/v1/models` says what was "
        "found. `--tool-parser` and `--reasoning-parser` override it.\n\n"
        f"* Calls: {', '.join(f'`{name}`' for name in tool_formats)}, `none`.\n"
        f"* Thoughts: {', '.join(f'`{name}`' for name in reasoning_formats)}, `none`."
    )


def _kinds_of(request: type[msgspec.Struct]) -> dict[str, str]:
    _, components = msgspec.json.schema_components([request])
    properties = components[request.__name__]["properties"]
    return {name: _kind(schema) for name, schema in properties.items()}


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in a few words."""
    if "anyOf" in schema:
        kinds = [_kind(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return "object"
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    bounds = [
        f"{sign} {schema[key]:g}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema and abs(schema[key]) < 2**31 - 1
    ]
    return f"{kind} {', '.join(bounds)}" if bounds else kind


if __name__ == "__main__":
    sys.stdout.write(page())
