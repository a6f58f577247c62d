"""Answers of Anthropic's Messages API as chat completions: whole ones, and streams event by event.

The way there is `messages_of_chat`. Usage is the API's last word, in which input that was read
from a cache or written to one is counted apart; here it is part of the prompt.
"""

from typing import Any

import msgspec

from headrace.base.errors import UpstreamFailed
from headrace.protocol.sse import done_data

Fields = dict[str, Any]

finish_reasons = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}

_encode = msgspec.json.Encoder().encode


class MessageUsage(msgspec.Struct, frozen=True):
    """Token counts as the API has them."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None

    def updated(self, newer: "MessageUsage") -> "MessageUsage":
        """The counts after an event that tells some of them anew."""
        told = {
            name: count
            for name in self.__struct_fields__
            if (count := getattr(newer, name)) is not None
        }
        return msgspec.structs.replace(self, **told)

    def fields(self) -> Fields:
        """The same in OpenAI's words."""
        cached = self.cache_read_input_tokens or 0
        prompt = (self.input_tokens or 0) + (self.cache_creation_input_tokens or 0) + cached
        output = self.output_tokens or 0
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


class Block(msgspec.Struct, frozen=True):
    """A piece of an answer; kinds that a chat has no place for say nothing."""

    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: Any = None


class Message(msgspec.Struct, frozen=True):
    """An answer, or the beginning of one."""

    id: str = ""
    model: str = ""
    content: list[Block] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage = MessageUsage()


class Delta(msgspec.Struct, frozen=True):
    """More of a block, or how the message ended."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class Event(msgspec.Struct, frozen=True):
    """One event of a stream; only what is used of it."""

    type: str
    message: Message | None = None
    content_block: Block | None = None
    delta: Delta | None = None
    usage: MessageUsage | None = None
    error: Any = None


_message = msgspec.json.Decoder(Message)
_event = msgspec.json.Decoder(Event)


def chat_of_message(body: bytes, created: int) -> bytes:
    """The chat completion, made at a time in Unix seconds; UpstreamFailed if it is no message."""
    try:
        message = _message.decode(body)
    except msgspec.DecodeError as error:
        raise UpstreamFailed(f"The engine's answer is malformed: {error}.") from None
    text = "".join(block.text for block in message.content if block.type == "text")
    thought = "".join(block.thinking for block in message.content if block.type == "thinking")
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": _encode(block.input or {}).decode()},
        }
        for block in message.content
        if block.type == "tool_use"
    ]
    said: Fields = {"role": "assistant", "content": text or (None if calls else "")}
    if thought:
        said["reasoning_content"] = said["reasoning"] = thought
    if calls:
        said["tool_calls"] = calls
    choice: Fields = {"index": 0, "message": said, **_end(message.stop_reason)}
    if message.stop_sequence is not None:
        choice["stop_reason"] = message.stop_sequence
    head = {"id": _chat_id(message.id), "object": "chat.completion", "created": created}
    usage = message.usage.fields()
    return _encode({**head, "model": message.model, "choices": [choice], "usage": usage})


class ChatChunks:
    """One stream: an event's data in, the data of the chunks that it becomes out."""

    def __init__(self, created: int) -> None:
        self._head: Fields = {"id": "", "object": "chat.completion.chunk", "created": created}
        self._usage = MessageUsage()
        self._calls = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The chunks, `[DONE]` at the end; msgspec.DecodeError if it is no event."""
        event = _event.decode(data)
        chunks: list[bytes] = []  # of ping, content_block_stop, and what comes to be
        match event.type:
            case "message_start" if event.message is not None:
                self._head |= {"id": _chat_id(event.message.id), "model": event.message.model}
                self._usage = event.message.usage
                chunks = [self._chunk({"role": "assistant", "content": ""})]
            case "content_block_start" if event.content_block is not None:
                chunks = self._begun(event.content_block)
            case "content_block_delta" if event.delta is not None:
                chunks = self._more(event.delta)
            case "message_delta":
                chunks = self._ended(event)
            case "message_stop":
                chunks = [done_data]
            case "error":
                chunks = [_encode({"error": event.error or {"message": "the engine failed"}})]
        return chunks

    def end(self) -> list[bytes]:
        """Nothing: a message has an event for its end."""
        return []

    def _begun(self, block: Block) -> list[bytes]:
        if block.type == "tool_use":
            self._calls += 1
            function = {"name": block.name, "arguments": ""}
            call = {"index": self._calls - 1, "id": block.id, "type": "function"}
            return [self._chunk({"tool_calls": [{**call, "function": function}]})]
        return self._more(Delta(text=block.text, thinking=block.thinking))

    def _more(self, delta: Delta) -> list[bytes]:
        if delta.text:
            return [self._chunk({"content": delta.text})]
        if delta.thinking:
            thought = delta.thinking
            return [self._chunk({"reasoning_content": thought, "reasoning": thought})]
        if delta.partial_json:
            call = {"index": self._calls - 1, "function": {"arguments": delta.partial_json}}
            return [self._chunk({"tool_calls": [call]})]
        return []

    def _ended(self, event: Event) -> list[bytes]:
        if event.usage is not None:
            self._usage = self._usage.updated(event.usage)
        delta = event.delta or Delta()
        choice: Fields = {"index": 0, "delta": {}, **_end(delta.stop_reason)}
        if delta.stop_sequence is not None:
            choice["stop_reason"] = delta.stop_sequence
        return [
            _encode({**self._head, "choices": [choice]}),
            _encode({**self._head, "choices": [], "usage": self._usage.fields()}),
        ]

    def _chunk(self, delta: Fields) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return _encode({**self._head, "choices": [choice]})


def _chat_id(message_id: str) -> str:
    return "chatcmpl-" + message_id.removeprefix("msg_")


def _end(stop_reason: str | None) -> Fields:
    return {"finish_reason": finish_reasons.get(stop_reason or "", "stop")}
