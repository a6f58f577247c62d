import json
from typing import Any

import pytest

from headrace.base.errors import ContextLengthExceeded, RateLimited
from headrace.protocol.chunks import ChunkWriter
from headrace.protocol.errors import error_body, error_event
from headrace.protocol.responses import Usage
from headrace.protocol.sse import SseDecoder

usage = Usage.of(prompt_tokens=5, cached_tokens=2, completion_tokens=3)
usage_fields = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
}


def payload(event: bytes) -> Any:
    (decoded,) = SseDecoder().feed(event)
    return json.loads(decoded.data)


def test_chat_chunks_have_openai_shape() -> None:
    chunks = ChunkWriter("chat", "chatcmpl-1", 42, 'm"odel', usage_chunk=False)
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 42, "model": 'm"odel'}

    def choice(delta: dict[str, str], reason: str | None) -> dict[str, Any]:
        return {
            **head,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}],
        }

    assert payload(chunks.opening()) == choice({"role": "assistant", "content": ""}, None)
    assert payload(chunks.text('é"\n')) == choice({"content": 'é"\n'}, None)
    assert payload(chunks.finish("stop")) == choice({}, "stop")


def test_text_chunks_have_openai_shape() -> None:
    chunks = ChunkWriter("text", "cmpl-1", 42, "m", usage_chunk=False)
    assert chunks.opening() == b""
    assert payload(chunks.text("a"))["choices"] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": None}
    ]
    assert payload(chunks.finish("length"))["choices"] == [
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
    ]


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_a_usage_chunk_makes_the_others_say_null(kind: Any) -> None:
    chunks = ChunkWriter(kind, "id", 42, "m", usage_chunk=True)
    assert payload(chunks.text("a"))["usage"] is None
    assert payload(chunks.finish("stop"))["usage"] is None
    last = payload(chunks.usage(usage))
    assert last["choices"] == []
    assert last["usage"] == usage_fields


def test_usage_so_far_can_stand_in_every_chunk() -> None:
    chunks = ChunkWriter("chat", "id", 42, "m", usage_chunk=False)
    assert payload(chunks.opening(usage))["usage"] == usage_fields
    assert payload(chunks.text("a", usage))["usage"] == usage_fields
    assert payload(chunks.finish("stop", usage))["usage"] == usage_fields


def test_an_error_carries_its_numbers() -> None:
    error = ContextLengthExceeded("too long", param="messages", prompt_tokens=9, max_model_len=8)
    assert json.loads(error_body(error))["error"] == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
        "prompt_tokens": 9,
        "max_model_len": 8,
    }


def test_an_error_in_a_stream_is_an_event_with_the_same_body() -> None:
    error = RateLimited("slow down")
    assert payload(error_event(error)) == json.loads(error_body(error))
