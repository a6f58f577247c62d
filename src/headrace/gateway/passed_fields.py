"""What a caller may say to an engine on the routes whose bodies pass as they came.

Chats and completions are read whole by `protocol`, which refuses what it does not know. These
routes are read in part, and their engines know more of them than we do. An engine may be told to
fetch an address, to run a template of the caller's, to load code, to read another tenant's cache
or to go before others; and a name that holds further texts would be read and not be paid. So each
route has the names that pass, none of which does any of that; all others are refused by name.
"""

from collections.abc import Iterable, Mapping, Set

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.protocol.requests import ChatMessage, ImagePart

reading = frozenset({"model", "user", "stream", "truncate_prompt_tokens"})
comparing = reading | {
    "encoding_format", "truncate", "use_activation", "activation", "softmax", "raw_scores",
}  # fmt: skip
tokenizing = frozenset({
    "model", "stream", "prompt", "content", "messages", "tools", "add_special", "parse_special",
    "add_special_tokens", "add_generation_prompt", "continue_final_message", "return_token_strs",
    "with_pieces",
})  # fmt: skip
detokenizing = frozenset({"model", "stream", "tokens", "skip_special_tokens"})
sampling = frozenset({
    "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "frequency_penalty",
    "presence_penalty",
})  # fmt: skip
writing_down = sampling | {
    "model", "language", "to_language", "prompt", "response_format", "timestamp_granularities",
    "timestamp_granularities[]", "include[]", "stream", "stream_include_usage",
    "stream_continuous_usage_stats", "chunking_strategy", "max_completion_tokens", "hotwords",
    "vad_filter", "known_speaker_names[]",
}  # fmt: skip
drawing = frozenset({
    "model", "prompt", "n", "size", "quality", "style", "background", "moderation",
    "output_format", "output_compression", "partial_images", "response_format", "stream", "user",
    "input_fidelity", "negative_prompt", "num_inference_steps", "guidance_scale",
    "true_cfg_scale", "seed",
})  # fmt: skip

passed_fields: Mapping[str, Set[str]] = {
    "/v1/embeddings": reading | {
        "input", "messages", "encoding_format", "dimensions", "add_special_tokens",
        "add_generation_prompt", "continue_final_message", "normalize", "truncate",
        "truncation_side", "truncation_direction", "input_type", "embed_dtype", "endianness",
    },
    "/v1/rerank": comparing | {
        "query", "documents", "top_n", "return_documents", "rank_fields", "max_tokens_per_doc",
        "max_chunks_per_doc",
    },
    "/v1/score": comparing | {"text_1", "text_2"},
    "/tokenize": tokenizing,
    "/detokenize": detokenizing,
    "/v1/audio/transcriptions": writing_down,
    "/v1/audio/translations": writing_down,
    "/v1/audio/speech": sampling | {
        "model", "input", "voice", "instructions", "response_format", "speed", "stream_format",
        "stream", "language", "lang_code", "sample_rate", "volume_multiplier",
        "max_new_tokens", "task_type",
    },
    "/v1/images/generations": drawing,
    "/v1/images/edits": drawing,
    "/v1/images/variations": drawing,
}  # fmt: skip
passed_files = frozenset({"file", "image", "image[]", "mask"})  # parts of a form that are files


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A document with a title."""

    text: str
    title: str | None = None


class Voice(msgspec.Struct, forbid_unknown_fields=True):
    """A voice by its id."""

    id: str


Plain = bool | int | float | str | list[bool | int | float | str | list[int] | None] | None
_plain = msgspec.json.Decoder(Plain)
_decoders: Mapping[str, msgspec.json.Decoder[object]] = {
    "messages": msgspec.json.Decoder(list[ChatMessage]),
    "documents": msgspec.json.Decoder(list[str | Document]),
    "voice": msgspec.json.Decoder(str | Voice),
    "tools": msgspec.json.Decoder(list[dict[str, object]]),
}
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_fields(path: str, names: Iterable[str]) -> None:
    """InvalidRequest for a field that does not pass to the engine's route at `path`."""
    passed = passed_fields[path]
    for name in names:
        if name not in passed:
            raise InvalidRequest(
                f"Unknown field {name!r}; remove it, or correct its name.", param=name
            )


def check_files(names: Iterable[str]) -> None:
    """InvalidRequest for a part of a form that is a file in the place of something else.

    Some engines take such a part for the field of its name, which we would not have seen."""
    for name in names:
        if name not in passed_files:
            raise InvalidRequest(
                f"The part {name!r} is a file; files are {', '.join(sorted(passed_files))}.",
                param=name,
            )


def check_body(path: str, body: bytes) -> None:
    """InvalidRequest for a field of a JSON object that does not pass, or a value with something in
    it that names more than texts and numbers. The object was decoded before."""
    fields = _raw_fields.decode(body)
    check_fields(path, fields)
    for name, value in fields.items():
        if b"{" in bytes(value):
            _check_value(name, value)


def _check_value(name: str, value: msgspec.Raw) -> None:
    """The values that may have objects in them, and those that must not."""
    try:
        found = _decoders.get(name, _plain).decode(value)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{name} is not as it must be: {error}.", param=name) from None
    except RecursionError:
        raise InvalidRequest(f"{name} is nested too deeply; send less.", param=name) from None
    if name == "messages" and isinstance(found, list) and any(map(has_images, found)):
        raise InvalidRequest("This API takes no images; send text.", param=name)


def has_images(message: ChatMessage) -> bool:
    """Whether an engine would have to look at, or fetch, something for it."""
    content = message.content
    return isinstance(content, list) and any(isinstance(part, ImagePart) for part in content)
