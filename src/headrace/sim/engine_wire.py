"""How engines write streams, errors and metrics: the shapes that `engine_exchanges` fills in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.adapters.protocol import EngineLoad, ReadinessState
from headrace.base.errors import ContextLengthExceeded, HeadraceError
from headrace.spec.settlements import TokenUsage

end_marker = b"data: [DONE]\n\n"
pieces = ("Grü", "ße", " 🚆")  # of every stream's text
call_name = "weather"
call_pieces = ("", '{"city":', ' "Bern"}')  # of the arguments, where a stream is a call
stream_usage = TokenUsage(9, 4, len(pieces))

noise = """# HELP x:request_seconds Time of requests.
# TYPE x:request_seconds histogram
x:request_seconds_bucket{le="0.1",label="a } b \\"c\\""} 3
x:request_seconds_bucket{le="+Inf"} 17
x:request_seconds_sum 12.5
x:request_seconds_count 17
process_cpu_seconds_total NaN

a line that nobody can read {{{ " 12
vllm:num_requests_running
sglang:num_running_reqs{model="cut
trtllm_num_requests_running abc
tgi_batch_current_size Inf
llamacpp:requests_processing NaN
"""


@dataclass(frozen=True, slots=True)
class ErrorExchange:
    """An error answer, and what it must become."""

    status: int
    body: bytes
    expected: type[HeadraceError]
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineExchanges:
    """The answers of one engine."""

    engine: str
    ready: tuple[int, bytes]
    unready: tuple[int, bytes, ReadinessState] | None  # None: nobody listens until it is ready
    metrics: str = ""
    load: EngineLoad = field(default_factory=EngineLoad)
    errors: Sequence[ErrorExchange] = ()
    stream: bytes = b""
    usage: TokenUsage | None = stream_usage  # told by the whole stream
    opening_chunks: int = 1  # before the first piece of text
    cut_usage: TokenUsage | None = None  # told by the stream before its last content chunk
    models: bytes = b""
    context_length: int | None = None
    calls_come_whole: bool = False  # the arguments of a call in one piece

    @property
    def call_stream(self) -> bytes:
        """The stream where the answer is a call: what the engine tells of its use is the same."""
        return with_call(self.stream, come_whole=self.calls_come_whole)


def chunk(choice: Mapping[str, object] | None, **more: object) -> bytes:
    """One event of a chat stream; None is a chunk without choices."""
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "internal-name",
        "choices": [] if choice is None else [{"index": 0, **choice}],
        **more,
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def openai_usage(usage: TokenUsage) -> dict[str, object]:
    """Usage as OpenAI writes it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def usage_after(count: int) -> TokenUsage:
    """The usage once so many pieces went out."""
    return TokenUsage(stream_usage.prompt_tokens, stream_usage.cached_tokens, count)


def without_cached(usage: TokenUsage) -> TokenUsage:
    """The usage as engines tell it that count no tokens from a cache."""
    return TokenUsage(usage.prompt_tokens, 0, usage.completion_tokens)


def stream_with_running_usage() -> bytes:
    """vLLM's, SGLang's and TensorRT-LLM's: usage in every chunk, and in one of its own."""
    parts = [
        chunk({"delta": {"role": "assistant", "content": ""}}, usage=openai_usage(usage_after(0)))
    ]
    for count, piece in enumerate(pieces, start=1):
        parts.append(
            chunk(
                {"delta": {"content": piece}, "finish_reason": None},
                usage=openai_usage(usage_after(count)),
            )
        )
    parts.append(chunk({"delta": {}, "finish_reason": "stop"}, usage=openai_usage(stream_usage)))
    return b"".join([*parts, chunk(None, usage=openai_usage(stream_usage)), end_marker])


def stream_with_usage_at_end(*, own_chunk: bool = True, marker: bytes = end_marker) -> bytes:
    """Ollama's, LM Studio's and OpenAI's; or with usage beside the finish reason, as TGI's."""
    parts = [chunk({"delta": {"role": "assistant"}, "finish_reason": None})]
    parts += [chunk({"delta": {"content": piece}, "finish_reason": None}) for piece in pieces]
    usage = openai_usage(stream_usage)
    finish: dict[str, object] = {"delta": {}, "finish_reason": "stop"}
    if own_chunk:
        parts += [chunk(finish), chunk(None, usage=usage)]
    else:
        parts.append(chunk(finish, usage=usage))
    return b"".join([*parts, marker])


def llama_stream() -> bytes:
    """llama.cpp's: `timings` in every chunk, usage in one of its own."""

    def timings(count: int) -> dict[str, object]:
        usage = usage_after(count)
        computed = usage.prompt_tokens - usage.cached_tokens
        return {
            "cache_n": usage.cached_tokens,
            "prompt_n": computed,
            "prompt_ms": 1.5,
            "predicted_n": count,
        }

    parts = [chunk({"finish_reason": None, "delta": {"role": "assistant", "content": None}})]
    for count, piece in enumerate(pieces, start=1):
        parts.append(
            chunk({"finish_reason": None, "delta": {"content": piece}}, timings=timings(count))
        )
    parts.append(chunk({"finish_reason": "stop", "delta": {}}))
    last = chunk(None, usage=openai_usage(stream_usage), timings=timings(len(pieces)))
    return b"".join([*parts, last, end_marker])


def with_call(stream: bytes, *, come_whole: bool) -> bytes:
    """A stream of text as one of a call, in either API: each piece becomes one of its arguments."""
    if come_whole:
        opening = dict.fromkeys(pieces, "") | {pieces[0]: "".join(call_pieces)}
    else:
        opening = dict(zip(pieces, call_pieces, strict=True))
    events = []
    for event in stream.split(b"\n\n"):
        head, separator, data = event.partition(b"data: ")
        if data.startswith(b"{"):
            body = json.loads(data)
            into_call(body, opening)
            data = json.dumps(body).encode()
        events.append(head + separator + data)
    return b"\n\n".join(events)


def into_call(body: dict[str, Any], arguments: Mapping[str, str]) -> None:
    """Turn one event of text into one of a call, by which arguments are in place of which piece."""
    for choice in body.get("choices", ()):
        if choice.get("finish_reason") == "stop":
            choice["finish_reason"] = "tool_calls"
        text = choice["delta"].get("content")
        if text:
            function = {"arguments": arguments[text]}
            call: dict[str, Any] = {"index": 0, "function": function}
            if text == pieces[0]:
                call |= {"id": "call_1", "type": "function"}
                function["name"] = call_name
            choice["delta"] = {"tool_calls": [call]}
    match body.get("type"):
        case "content_block_start":
            use = {"type": "tool_use", "id": "call_1", "name": call_name, "input": {}}
            body["content_block"] = use
        case "content_block_delta":
            piece = arguments[body["delta"]["text"]]
            body["delta"] = {"type": "input_json_delta", "partial_json": piece}
        case "message_delta":
            body["delta"]["stop_reason"] = "tool_use"


def nested(message: str, **more: object) -> bytes:
    """An error in OpenAI's shape."""
    return json.dumps({"error": {"message": message, **more}}).encode()


def flat(message: str, **more: object) -> bytes:
    """An error with its words at the top."""
    return json.dumps({"object": "error", "message": message, **more}).encode()


def too_long(status: int, body: bytes, prompt: int | None, context: int | None) -> ErrorExchange:
    """A prompt that does not fit; None where the engine tells no number."""
    numbers = {"prompt_tokens": prompt, "max_model_len": context}
    known = {name: number for name, number in numbers.items() if number is not None}
    return ErrorExchange(status, body, ContextLengthExceeded, known)


def listed(**more: object) -> bytes:
    """A list of two models, the second the one that was asked about."""
    models = [{"id": "another", "object": "model"}, {"id": "a-model", "object": "model", **more}]
    return json.dumps({"object": "list", "data": models}).encode()


def config_of(state: str) -> bytes:
    """OpenVINO Model Server's state of each model."""
    version = {"version": "1", "state": state, "status": {"error_code": "OK"}}
    return json.dumps({"a-model": {"model_version_status": [version]}}).encode()


def anthropic_error(message: str, kind: str = "invalid_request_error") -> bytes:
    """An error of Anthropic's API."""
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


def message_stream() -> bytes:
    """Anthropic's: named events, the input's use at the start and the output's at the end."""

    def event(kind: str, **fields: object) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()

    cached = stream_usage.cached_tokens
    usage = {
        "input_tokens": stream_usage.prompt_tokens - cached - 1,
        "cache_creation_input_tokens": 1,
        "cache_read_input_tokens": cached,
    }
    message: dict[str, object] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "internal-name",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1},
    }
    block = {"type": "text", "text": ""}
    parts = [
        event("message_start", message=message),
        event("content_block_start", index=0, content_block=block),
        event("ping"),
    ]
    for piece in pieces:
        delta = {"type": "text_delta", "text": piece}
        parts.append(event("content_block_delta", index=0, delta=delta))
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    parts += [
        event("content_block_stop", index=0),
        event("message_delta", delta=end, usage={"output_tokens": stream_usage.completion_tokens}),
        event("message_stop"),
    ]
    return b"".join(parts)


def generated_stream(*, tells_end: bool, tells_use: bool = True) -> bytes:
    """Triton's: the vLLM backend's with an end, the TensorRT-LLM backend's without, and an older
    one's without use."""
    parts = []
    for count, piece in enumerate(pieces, start=1):
        event: dict[str, object] = {
            "model_name": "internal-name",
            "model_version": "1",
            "text_output": piece,
        }
        if tells_end:
            event["finish_reason"] = "stop" if count == len(pieces) else "None"
        else:
            event |= {"sequence_end": False, "sequence_id": 0, "sequence_start": False}
        if tells_use:
            event |= {"num_input_tokens": stream_usage.prompt_tokens, "num_output_tokens": 1}
        parts.append(b"data: " + json.dumps(event).encode() + b"\n\n")
    return b"".join(parts)
