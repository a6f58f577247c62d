"""Ollama's API as requests: what clients send, and the chat or completion request it becomes."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.base.errors import InvalidRequest
from headrace.protocol.parsing import decode_request
from headrace.protocol.requests import StopString, stop_strings_max
from headrace.protocol.tools import Tool, tools_max

Fields = dict[str, object]
default_tag = ":latest"

# Each option that works, with its name in a chat request.
option_names = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
# How a model is loaded and run; here the operator has decided that.
ignored_options = frozenset(
    {
        "f16_kv",
        "low_vram",
        "main_gpu",
        "numa",
        "num_batch",
        "num_ctx",
        "num_gpu",
        "num_keep",
        "num_thread",
        "penalize_newline",
        "use_mlock",
        "use_mmap",
        "vocab_only",
    }
)


class Options(msgspec.Struct, frozen=True):
    """How tokens are chosen, and how many."""

    num_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None  # below 0: no limit
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=stop_strings_max)] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """What was called, with what."""

    name: str
    arguments: dict[str, Any] = {}


class Call(msgspec.Struct, frozen=True):
    """A call that the model made."""

    function: CalledFunction
    id: str | None = None


class Turn(msgspec.Struct, frozen=True):
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    images: list[str] | None = None


Think = bool | Literal["low", "medium", "high"]


class OllamaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that both generating routes share."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options | None = None
    stream: bool | None = None  # as a stream unless false
    think: Think | None = None
    keep_alive: str | float | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes in lines."""
        return self.stream is not False


class OllamaChatRequest(OllamaRequest, frozen=True, kw_only=True):
    """POST /api/chat."""

    messages: list[Turn] = []
    tools: Annotated[list[Tool], Meta(max_length=tools_max)] | None = None


class OllamaGenerateRequest(OllamaRequest, frozen=True, kw_only=True):
    """POST /api/generate."""

    prompt: str = ""
    suffix: str | None = None  # what comes after the answer, which fills the gap before it
    system: str | None = None
    raw: bool | None = None  # the prompt as it is, without the model's template


class OllamaEmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /api/embed."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    input: str | list[str]
    truncate: bool | None = None
    dimensions: int | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None


class OllamaShowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /api/show."""

    model: str | None = None
    name: str | None = None  # the older name of `model`
    verbose: bool | None = None


_chat = msgspec.json.Decoder(OllamaChatRequest)
_generate = msgspec.json.Decoder(OllamaGenerateRequest)
_embed = msgspec.json.Decoder(OllamaEmbedRequest)
_show = msgspec.json.Decoder(OllamaShowRequest)

unsupported_fields: dict[str, tuple[object, ...]] = {
    "context": ([],),
    "images": ([],),
    "template": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
}


def parse_ollama_chat(body: bytes) -> OllamaChatRequest:
    """The chat request in `body`; InvalidRequest names the first field that is wrong."""
    request = decode_request(_checked(body), _chat, OllamaChatRequest, unsupported_fields)
    for index, turn in enumerate(request.messages):
        if turn.images:
            raise InvalidRequest(
                "This server reads no images; leave them out.", param=f"messages[{index}].images"
            )
    return request


def parse_ollama_generate(body: bytes) -> OllamaGenerateRequest:
    """The same for a prompt."""
    return decode_request(_checked(body), _generate, OllamaGenerateRequest, unsupported_fields)


def parse_ollama_embed(body: bytes) -> OllamaEmbedRequest:
    """The same for texts to embed."""
    return decode_request(body, _embed, OllamaEmbedRequest, unsupported_fields)


def parse_ollama_show(body: bytes) -> str:
    """The name of the model that is asked about."""
    request = decode_request(body, _show, OllamaShowRequest, {})
    name = request.model or request.name
    if not name:
        raise InvalidRequest("Which model? Send its name.", param="model")
    return plain_name(name)


def plain_name(name: str) -> str:
    """The model's name without the tag that Ollama's clients add to names that have none."""
    return name.removesuffix(default_tag)


def chat_of_ollama(request: OllamaChatRequest) -> bytes:
    """The chat request that asks for the same, as a body."""
    fields = _shared(request)
    fields["messages"] = _turns(request.messages)
    if request.tools:
        fields["tools"] = request.tools
    return msgspec.json.encode(fields)


def chat_of_generate(request: OllamaGenerateRequest) -> bytes:
    """The chat request of a prompt that the model's template is to frame, as a body."""
    fields = _shared(request)
    system = [{"role": "system", "content": request.system}] if request.system else []
    fields["messages"] = [*system, {"role": "user", "content": request.prompt}]
    return msgspec.json.encode(fields)


def completion_of_generate(request: OllamaGenerateRequest) -> bytes:
    """The completion request of a prompt as it is, or of a gap to fill, as a body."""
    if request.system:
        raise InvalidRequest(
            "A raw prompt, or one with a suffix, has no system message; leave system out.",
            param="system",
        )
    fields = _shared(request)
    fields.pop("reasoning_effort", None)
    fields["prompt"] = request.prompt
    if request.suffix:
        fields["suffix"] = request.suffix
    return msgspec.json.encode(fields)


def _shared(request: OllamaRequest) -> Fields:
    fields: Fields = {"model": plain_name(request.model)}
    options = request.options or Options()
    for name, chat_name in option_names.items():
        value = getattr(options, name)
        if value is not None:
            fields[chat_name] = value
    if options.num_predict is not None and options.num_predict > 0:
        fields["max_tokens"] = options.num_predict
    if request.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif isinstance(request.format, dict):
        schema = {"name": "answer", "schema": request.format}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.think is False:
        fields["reasoning_effort"] = "none"
    elif isinstance(request.think, str):
        fields["reasoning_effort"] = request.think
    if request.is_stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return fields


def _turns(turns: list[Turn]) -> list[Fields]:
    """The conversation; Ollama's calls have no ids, so they are numbered in order."""
    written: list[Fields] = []
    called = answered = 0
    for turn in turns:
        fields: Fields = {"role": turn.role, "content": turn.content or ""}
        if turn.thinking:
            fields["reasoning_content"] = turn.thinking
        if turn.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": f"call_{called + position}",
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": msgspec.json.encode(call.function.arguments).decode(),
                    },
                }
                for position, call in enumerate(turn.tool_calls)
            ]
            called += len(turn.tool_calls)
        if turn.role == "tool":
            fields["tool_call_id"] = f"call_{answered}"
            answered += 1
            if turn.tool_name:
                fields["name"] = turn.tool_name
        written.append(fields)
    return written


class _WithOptions(msgspec.Struct):
    options: dict[str, msgspec.Raw] | None = None


_options = msgspec.json.Decoder(_WithOptions)


def _checked(body: bytes) -> bytes:
    """The body, if each of its options works or is for the operator to decide."""
    try:
        options = _options.decode(body).options or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body  # the parser says what is wrong
    known = set(Options.__struct_fields__) | ignored_options
    for name in sorted(set(options) - known):
        raise InvalidRequest(
            f"The option {name!r} is not supported by this server; leave it out.",
            param=f"options.{name}",
        )
    return body
