"""From a request's bytes to its value, or a 400 that names the field; no silent ignoring.

Three classes of top-level fields: those of the request's type work; those of `unsupported_fields`
are known and pass only with a value that changes nothing; all others are unknown, which is an
error in strict mode and otherwise for the caller to report (`unknown_fields`).
"""

import re
from collections.abc import Mapping, Set
from typing import TypeVar, get_args

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.protocol.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Role,
    answers_max,
    logit_bias_max,
    prompts_max,
)
from headrace.protocol.tools import forced_name

Request = TypeVar("Request", bound=GenerationRequest)
AnyRequest = TypeVar("AnyRequest", bound=msgspec.Struct)

# Each known field that does not work yet, with the values that ask for nothing. Null always passes.
unsupported_fields: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "cache_salt": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_budget": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default", "standard_only", "priority", "flex", "batch"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}

# What generating requests may have, by the names of chat and text completions.
supported_parameters = tuple(
    sorted(set(ChatRequest.__struct_fields__) | set(CompletionRequest.__struct_fields__))
)

token_id_digits_max = 10

# What the fields of fixed values may be, by their own name; the decoder tells only what was wrong.
fixed_values: Mapping[str, str] = {
    "reasoning_effort": "none, minimal, low, medium, high, xhigh",
    "tool_choice": "none, auto, required, or a function by name",
    "role": ", ".join(get_args(Role)),
    "type": "text; for response_format also json_object, json_schema and structural_tag; function "
    "for tools",
    "content[].type": "text or image_url",
}
content_part_type = re.compile(r"messages\[\d+\]\.content\[\d+\]\.type")

_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any_value = msgspec.json.Decoder()
_chat = msgspec.json.Decoder(ChatRequest)
_completion = msgspec.json.Decoder(CompletionRequest)
_validation_message = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>[^`]*)`", re.DOTALL)
_half_surrogate = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_named_field = re.compile(r"Object (?:missing required|contains unknown) field `(?P<name>[^`]*)`")


def parse_chat_request(body: bytes, *, strict: bool = True, trusted: bool = False) -> ChatRequest:
    """The chat request in `body`; InvalidRequest names the first field that is wrong.

    Only `trusted` callers may set a priority or move KV. It may have images: see
    `protocol.images`."""
    request = _parse(body, _chat, ChatRequest, strict)
    _check_caller(request, trusted)
    if request.max_tokens == 0:
        raise InvalidRequest("max_tokens must be at least 1.", param="max_tokens")
    if request.max_tokens and request.max_completion_tokens:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens are the same limit; send one of them.",
            param="max_completion_tokens",
        )
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    _check_messages(request)
    _check_tools(request)
    _check_token_id_keys(request)
    return request


def parse_completion_request(
    body: bytes, *, strict: bool = True, trusted: bool = False
) -> CompletionRequest:
    """The text completion request in `body`; InvalidRequest names the first wrong field.

    Only `trusted` callers may set a priority or move KV."""
    request = _parse(body, _completion, CompletionRequest, strict)
    _check_caller(request, trusted)
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequest(
            "max_tokens must be at least 1, unless echo asks for the prompt.", param="max_tokens"
        )
    if isinstance(request.prompt, list):
        _check_prompt_list(request.prompt)
    _check_counts(request)
    _check_suffix(request)
    _check_token_id_keys(request)
    return request


def unknown_fields(body: bytes, request_type: type[GenerationRequest]) -> tuple[str, ...]:
    """Top-level fields of `body` that neither work nor are known, sorted."""
    names = set(_fields(body)) - set(request_type.__struct_fields__) - set(unsupported_fields)
    return tuple(sorted(names))


def replace_fields(body: bytes, values: Mapping[str, object]) -> bytes:
    """The same JSON object with some top-level fields set; all others stay byte for byte."""
    return msgspec.json.encode({**_fields(body), **values})


def _parse(
    body: bytes, decoder: msgspec.json.Decoder[Request], request_type: type[Request], strict: bool
) -> Request:
    known = unsupported_fields
    request = decode_request(body, decoder, request_type, known, values=fixed_values, strict=strict)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "stream_options is only allowed with stream: true.", param="stream_options"
        )
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequest(
            "prompt_logprobs come with whole answers only; leave stream out.",
            param="prompt_logprobs",
        )
    return request


def decode_request(
    body: bytes,
    decoder: msgspec.json.Decoder[AnyRequest],
    request_type: type[AnyRequest],
    unsupported: Mapping[str, tuple[object, ...]],
    ignored: Set[str] = frozenset(),
    *,
    values: Mapping[str, str] = {},
    strict: bool = True,
) -> AnyRequest:
    """A request in JSON; InvalidRequest names the first field that is wrong or does not work.

    `unsupported` fields pass with the values that stand there, `ignored` ones with any; unknown
    ones are refused where `strict`. `values` says what fields of fixed values may be."""
    fields = _fields(body)
    own = set(request_type.__struct_fields__)
    for name in fields.keys() & unsupported.keys() - own:
        _check_unsupported(name, _decode(fields[name], _any_value), unsupported[name])
    if strict:
        for name in sorted(fields.keys() - own - unsupported.keys() - ignored):
            raise InvalidRequest(
                f"Unknown field {name!r}; remove it, or correct its name.", param=name
            )
    return _decode(body, decoder, values)


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The body is not valid UTF-8 (byte {error.start}); encode it as UTF-8."
        ) from None
    return _decode(body, _raw_fields)


Value = TypeVar("Value")


def _decode(
    data: bytes | msgspec.Raw,
    decoder: msgspec.json.Decoder[Value],
    values: Mapping[str, str] = {},
) -> Value:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), values) from None
    except msgspec.DecodeError as error:
        surrogates = _half_surrogate.search(bytes(data))
        hint = "; it may have half of a surrogate pair (\\ud800 to \\udfff)" if surrogates else ""
        raise InvalidRequest(f"The body is not a JSON object: {error}{hint}.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply; send a flatter one.") from None


def _invalid(text: str, fixed: Mapping[str, str]) -> InvalidRequest:
    """Turn a validation message, which ends in a JSON path, into an error that names the field."""
    match = _validation_message.fullmatch(text)
    what, path = (match["what"], match["path"]) if match else (text, "")
    named = _named_field.match(what)
    if named:
        path = f"{path}.{named['name']}" if path else named["name"]
        what = "Missing required field" if "missing" in what else "Unknown field"
        return InvalidRequest(f"{what} {path!r}.", param=path)
    if not path:
        return InvalidRequest(f"The body must be a JSON object: {what}.")
    is_part = content_part_type.fullmatch(path) is not None
    if is_part or what.startswith("Invalid enum value"):
        values = fixed.get("content[].type" if is_part else path.rpartition(".")[2])
        what = f"{what}; it may be {values}" if values else what
    return InvalidRequest(f"Invalid value for {path!r}: {what}.", param=path)


def _check_unsupported(name: str, value: object, neutral_values: tuple[object, ...]) -> None:
    if value is None or any(_same(value, neutral) for neutral in neutral_values):
        return
    raise InvalidRequest(f"{name!r} is not supported by this server; leave it out.", param=name)


def _same(value: object, neutral: object) -> bool:
    """Equality that tells `false` from 0, which ask for different things in some fields."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


def _check_token_id_keys(request: GenerationRequest) -> None:
    biases = request.logit_bias or {}
    if len(biases) > logit_bias_max:
        raise InvalidRequest(
            f"logit_bias has {len(biases)} tokens; it may have {logit_bias_max}.",
            param="logit_bias",
        )
    for token_id in biases:
        if not (token_id.isascii() and token_id.isdigit() and len(token_id) <= token_id_digits_max):
            raise InvalidRequest(
                f"The keys of logit_bias are token ids; {token_id[:64]!r} is none.",
                param="logit_bias",
            )
    if len({int(token_id) for token_id in biases}) < len(biases):
        raise InvalidRequest("logit_bias names a token twice.", param="logit_bias")


def _check_prompt_list(prompt: list[str | int | list[int]]) -> None:
    """A list of token ids is one prompt; other lists have a prompt in each item, all of a kind."""
    if any(item == [] for item in prompt):
        raise InvalidRequest("A prompt is empty; send at least one token.", param="prompt")
    if len({type(item) for item in prompt}) > 1:
        raise InvalidRequest(
            "A list of prompts has texts, or token ids, or lists of these; not a mix.",
            param="prompt",
        )
    if not isinstance(prompt[0], int) and len(prompt) > prompts_max:
        raise InvalidRequest(
            f"One request may have {prompts_max} prompts, not {len(prompt)}.", param="prompt"
        )


def _check_counts(request: CompletionRequest) -> None:
    best_of = request.best_of
    if best_of is not None and best_of < request.answers_count:
        raise InvalidRequest(
            f"best_of ({best_of}) is less than n ({request.answers_count}); raise it.",
            param="best_of",
        )
    if request.stream and best_of is not None and best_of > request.answers_count:
        raise InvalidRequest(
            "The best answers are known when all have ended; send best_of without stream.",
            param="best_of",
        )
    if request.sequences_count > answers_max:
        raise InvalidRequest(
            f"One request may ask for {answers_max} answers over all its prompts, not "
            f"{request.sequences_count}.",
            param="n" if best_of is None else "best_of",
        )


def _check_suffix(request: CompletionRequest) -> None:
    if not request.suffix:
        return
    if request.echo:
        raise InvalidRequest(
            "With suffix the prompt is not one text that could be echoed; leave echo out.",
            param="echo",
        )
    if request.truncate_prompt_tokens is not None:
        raise InvalidRequest(
            "With suffix the prompt cannot be cut; shorten prompt or suffix.",
            param="truncate_prompt_tokens",
        )


def _check_caller(request: GenerationRequest, trusted: bool) -> None:
    if request.priority and not trusted:
        raise InvalidRequest(
            "priority is for trusted callers; leave it out, or set it where requests come from.",
            param="priority",
        )
    if request.kv_transfer_params is not None and not trusted:
        raise InvalidRequest(
            "kv_transfer_params is for trusted callers: it names addresses that an engine asks.",
            param="kv_transfer_params",
        )


def _check_messages(request: ChatRequest) -> None:
    for index, message in enumerate(request.messages):
        path = f"messages[{index}]"
        if message.content is None and not (message.role == "assistant" and message.tool_calls):
            raise InvalidRequest(
                f"Missing required field '{path}.content'; only an assistant's message with "
                "tool_calls may leave it out.",
                param=f"{path}.content",
            )
        if message.tool_calls and message.role != "assistant":
            raise InvalidRequest(
                f"{path}.tool_calls: only an assistant's message has calls.",
                param=f"{path}.tool_calls",
            )


def _check_tools(request: ChatRequest) -> None:
    names = [tool.function.name for tool in request.tools or ()]
    if len(set(names)) < len(names):
        raise InvalidRequest("Two tools have the same name; rename one.", param="tools")
    if request.must_call and not names:
        raise InvalidRequest("tool_choice asks for a call; send tools.", param="tool_choice")
    name = forced_name(request.tool_choice)
    if name is not None and name not in names:
        raise InvalidRequest(
            f"tool_choice names {name!r}, which is not among the tools.", param="tool_choice"
        )
