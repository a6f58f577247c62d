"""APIs that others run, reached by OpenAI's protocol: OpenAI, Gemini, OpenRouter, Azure, and so on.

The address of such an endpoint is its base URL as OpenAI's clients take it, with its version part.
Keys are named by reference: an operator gives the variable that holds it, and no command has it.

Known traps:

* all: unknown fields are refused, `continuous_usage_stats` among them. -> Only OpenAI's are sent.
* all: streams tell usage at their end. -> An abort is billed by what passed, the provider bills
  what it generated.
* all: no metrics. -> The router counts for itself, and 429 puts the endpoint aside.
* OpenAI: reasoning models refuse `max_tokens` in favour of `max_completion_tokens`. -> Have the
  caller set a limit; a cap of the gateway's own is sent as `max_tokens`.
* Azure: needs the v1 route (`/openai/v1`); older ones want a version in the query. -> Use v1.
* Gemini: errors are a list with one object. -> Read there.
* Anthropic: its OpenAI route is meant for trials and drops fields. -> Use it for nothing else.
* all: a tenant's cache salt must not leave the house. -> None is sent.
"""

from dataclasses import dataclass

from headrace.adapters.engine_errors import ContextPattern
from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.listed_models import lists_models
from headrace.adapters.openai_compatible import OpenAICompatible, ReadyAnswers, not_started_here


@dataclass(frozen=True, slots=True)
class Provider:
    """One API of others. Parts in braces of the base URL are the account's own."""

    name: str
    base_url: str
    key_variable: str  # as its own clients name it


providers = (
    Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    Provider("gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    Provider("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    Provider("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    Provider("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    Provider("azure", "https://{resource}.openai.azure.com/openai/v1", "AZURE_OPENAI_API_KEY"),
    Provider(
        "bedrock",
        "https://bedrock-runtime.{region}.amazonaws.com/openai/v1",
        "AWS_BEARER_TOKEN_BEDROCK",
    ),
)

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
