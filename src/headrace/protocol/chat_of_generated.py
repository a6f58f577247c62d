"""Answers of the generate extension of KServe's v2 protocol as chat completions.

The way there is `generate_of_chat`. Both backends tell their use where they are asked, with the
tokens of each event; of one that is too old for that, what passed is counted. Why an answer ended,
the vLLM backend tells alone; a stream of the TensorRT-LLM backend has no end but its body's, and
"stop" is said.
"""

from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from headrace.base.errors import UpstreamFailed
from headrace.protocol.sse import done_data

Fields = dict[str, Any]
Item = TypeVar("Item", str, int)

unfinished = (None, "", "None")  # as the vLLM backend writes that more is to come

_encode = msgspec.json.Encoder().encode


class Generated(msgspec.Struct, frozen=True):
    """An answer, or an event of one; a model that gives several gives lists."""

    model_name: str = ""
    text_output: str | list[str] | None = None
    finish_reason: str | list[str] | None = None
    num_input_tokens: int | list[int] | None = None
    num_output_tokens: int | list[int] | None = None
    error: str | None = None


_decoder = msgspec.json.Decoder(Generated)


def chat_of_generated(body: bytes, created: int) -> bytes:
    """The chat completion, made at a time in Unix seconds; UpstreamFailed if there is no text."""
    try:
        generated = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise UpstreamFailed(f"The engine's answer is malformed: {error}.") from None
    text = first(generated.text_output)
    if text is None:
        raise UpstreamFailed("The engine's answer has no text_output in it.")
    choice: Fields = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": end_of(generated) or "stop",
    }
    fields = {**_head("chat.completion", created, generated), "choices": [choice]}
    prompt, output = first(generated.num_input_tokens), first(generated.num_output_tokens)
    if prompt is not None and output is not None:
        fields["usage"] = usage_fields(prompt, output)
    return _encode(fields)


class GeneratedChunks:
    """One stream: an event's data in, the data of the chunks that it becomes out."""

    def __init__(self, created: int) -> None:
        self._created = created
        self._head: Fields = {}
        self._output_tokens = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The chunks; msgspec.DecodeError if it is no event."""
        event = _decoder.decode(data)
        if event.error is not None:
            return [_encode({"error": {"message": event.error}})]
        delta: Fields = {}
        if not self._head:
            self._head = _head("chat.completion.chunk", self._created, event)
            delta["role"] = "assistant"
        text = first(event.text_output)
        if text:
            delta["content"] = text
        usage = self._usage(event)
        finish_reason = end_of(event)
        if finish_reason is None:
            return [self._chunk(delta, None, usage)] if text else []
        said = [self._chunk(delta, None, usage)] if text else []
        return [*said, self._chunk({}, finish_reason, usage), done_data]

    def end(self) -> list[bytes]:
        """The chunks that the end of the body is."""
        return [self._chunk({}, "stop"), done_data]

    def _usage(self, event: Generated) -> Fields | None:
        """The use so far, if the event tells of it."""
        prompt, output = first(event.num_input_tokens), first(event.num_output_tokens)
        if prompt is None or output is None:
            return None
        self._output_tokens += output
        return usage_fields(prompt, self._output_tokens)

    def _chunk(
        self, delta: Fields, finish_reason: str | None, usage: Fields | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        told = {} if usage is None else {"usage": usage}
        return _encode({**self._head, "choices": [choice], **told})


def first(value: Item | list[Item] | None) -> Item | None:
    """The value, or the first of several."""
    if isinstance(value, list):
        return value[0] if value else None
    return value


def end_of(generated: Generated) -> str | None:
    """Why it ended, in OpenAI's words; None: it did not, or does not say."""
    reason = first(generated.finish_reason)
    if reason in unfinished:
        return None
    return "length" if reason == "length" else "stop"


def usage_fields(prompt_tokens: int, output_tokens: int) -> Fields:
    """Usage as OpenAI writes it."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }


def _head(kind: str, created: int, generated: Generated) -> Fields:
    """What all of an answer has; the extension has no ids."""
    made = f"chatcmpl-{uuid4().hex}"
    return {"id": made, "object": kind, "created": created, "model": generated.model_name}
