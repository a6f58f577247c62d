"""APIs that others run, reached by OpenAI's protocol: OpenAI, Gemini, OpenRouter, Azure, and so on.

The address of such an endpoint is its base URL as OpenAI's clients take it, with its version part:

    https://api.openai.com/v1                                     OpenAI (engine `openai`)
    https://RESOURCE.openai.azure.com/openai/v1                   Azure (engine `openai`)
    https://generativelanguage.googleapis.com/v1beta/openai       Gemini
    https://openrouter.ai/api/v1                                  OpenRouter
    https://api.together.xyz/v1                                   Together
    https://bedrock-runtime.REGION.amazonaws.com/openai/v1        Bedrock

Keys are named by reference: an operator gives the variable that holds it, and no command has it.

Known traps:

* all: unknown fields are refused, `continuous_usage_stats` among them. -> Only OpenAI's are sent.
* all: streams tell usage at their end. -> An abort is billed by what passed, the provider bills
  what it generated.
* Bedrock, and some behind OpenRouter: the whole answer is billed although its caller left. -> With
  `--bills-abandoned` it is read to its end and billed by its last word.
* all: no metrics. -> The router counts for itself, and 429 puts the endpoint aside.
* OpenAI: reasoning models refuse `max_tokens` in favour of `max_completion_tokens`. -> Name the
  engine `openai`, for Azure too; then a cap of the gateway's own goes there.
* Gemini: errors are a list with one object. -> Read there.
* Anthropic: its OpenAI route is meant for trials and drops fields. -> Name the engine `anthropic`.
* all: a tenant's cache salt must not leave the house. -> None is sent.
"""

from dataclasses import replace

from headrace.adapters.engine_errors import ContextPattern
from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.listed_models import lists_models
from headrace.adapters.openai_compatible import OpenAICompatible, ReadyAnswers, not_started_here

context_patterns = (
    ContextPattern.of(
        r"maximum context length is (?P<context>\d+) tokens.{0,200}?"
        r"(?:resulted in|requested(?: about)?) (?P<prompt>\d+) tokens"
    ),
    ContextPattern.of(r"maximum context length is (?P<context>\d+) tokens"),
    ContextPattern.of(
        r"input token count \(?(?P<prompt>\d+)\)? exceeds the maximum number of tokens allowed "
        r"\(?(?P<context>\d+)\)?"
    ),
    ContextPattern.of(r"prompt is too long: (?P<prompt>\d+) tokens > (?P<context>\d+) maximum"),
)

openai_notes = """OpenAI's own API, and Azure's v1 route: a limit of tokens goes by its newer name.

Known traps:

* all: reasoning models refuse `max_tokens`. -> The gateway's limit is `max_completion_tokens`; what
  the caller itself sends goes through as it is.
* Azure: older routes want a version in the query. -> Use the v1 route (`/openai/v1`).
* all: streams tell usage at their end, and no load is told. -> As of `managed`.
"""

adapter = OpenAICompatible(
    name="managed",
    facts=EngineFacts(
        title="Managed APIs",
        start=Start.EXTERNAL,
        evidence=Evidence.REPLAYED,
        version_read="public documents of 2026",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.EMBEDDINGS, Ability.TOOLS, Ability.FORCED_TOOLS),
                *(Ability.JSON_SCHEMA, Ability.VISION, Ability.PREFIX_CACHE),
            )
        ),
        stream_usage=StreamUsage.AT_END,
        abort=Abort.DISCONNECT,
        authenticates=True,
        is_paid=True,
        notes=__doc__ or "",
    ),
    build=not_started_here("A managed API", "Give its base URL and the variable with its key."),
    ready=ReadyAnswers(lists_models),
    readiness_path="/models",
    metrics_path=None,
    context_patterns=context_patterns,
    api_prefix="",
    request_id_header=None,
)

openai = replace(
    adapter,
    name="openai",
    facts=replace(adapter.facts, title="OpenAI's API, Azure's too", notes=openai_notes),
    output_limit_field="max_completion_tokens",
)
