"""Anthropic's API, and others of its kind: reached by the Messages API, as a chat on our side.

Its address is its base URL with the version part (`https://api.anthropic.com/v1`). Requests and
answers are translated both ways (`protocol.messages_of_chat`, `protocol.chat_of_message`), since
its OpenAI route is meant for trials and drops fields.

Known traps:

* all: `max_tokens` must be given. -> What the caller left open is 4,096, or what its budget allows.
* all: no field for penalties, seeds, log-probabilities, several answers. -> A 400 names the field.
* all: thoughts of earlier turns need their signature. -> They are left out.
* all: streams tell usage at their end. -> An abort is billed by what passed, the provider bills
  what it generated.
* all: 529 means that it is overloaded. -> Another endpoint is asked, or the caller told to retry.
* all: a tenant's cache salt must not leave the house. -> None is sent.
"""

from headrace.adapters.engine_errors import ContextPattern
from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.listed_models import lists_models
from headrace.adapters.openai_compatible import OpenAICompatible, ReadyAnswers, not_started_here
from headrace.adapters.protocol import Dialect
from headrace.protocol.chat_of_message import ChatChunks, chat_of_message
from headrace.protocol.generate_of_chat import ChatWriter
from headrace.protocol.messages_of_chat import messages_of_chat

api_version = "2023-06-01"

context_patterns = (
    ContextPattern.of(r"prompt is too long: (?P<prompt>\d+) tokens > (?P<context>\d+) maximum"),
    ContextPattern.of(
        r"input length and `max_tokens` exceed context limit: (?P<prompt>\d+) \+ \d+ > "
        r"(?P<context>\d+)"
    ),
)


def key_headers(api_key: str) -> dict[str, str]:
    """The key, and the version of the API that is spoken."""
    return {"x-api-key": api_key, "anthropic-version": api_version}


def messages_request(body: bytes, _: ChatWriter | None = None) -> tuple[str, bytes]:
    """The path and the body that ask for the same; InvalidRequest names what cannot be asked."""
    return "/v1/messages", messages_of_chat(body)


adapter = OpenAICompatible(
    name="anthropic",
    facts=EngineFacts(
        title="Anthropic's API",
        start=Start.EXTERNAL,
        evidence=Evidence.REPLAYED,
        version_read="public documents of 2026",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.TOOLS, Ability.FORCED_TOOLS, Ability.JSON_SCHEMA),
                *(Ability.VISION, Ability.PREFIX_CACHE),
            )
        ),
        stream_usage=StreamUsage.AT_END,
        abort=Abort.DISCONNECT,
        authenticates=True,
        is_paid=True,
        notes=__doc__ or "",
    ),
    build=not_started_here("Anthropic's API", "Give its address and a reference to its key."),
    ready=ReadyAnswers(lists_models),
    readiness_path="/models",
    metrics_path=None,
    context_patterns=context_patterns,
    make_headers=key_headers,
    api_prefix="",
    request_id_header=None,
    overloaded_statuses=frozenset((503, 529)),
    dialect=Dialect(
        request=messages_request,
        whole=chat_of_message,
        stream=ChatChunks,
    ),
)
