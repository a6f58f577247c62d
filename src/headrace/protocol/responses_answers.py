"""Chat answers as OpenAI's Responses API sends them: a response, or the events of its stream.

A response's output is items: thoughts, a message, calls; each is added, gains deltas and is done.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.protocol.chat_answers import AnswerUsage, CallBegun, Finished, read_answer
from headrace.protocol.deltas import ArgumentsDelta, ContentDelta, ReasoningDelta
from headrace.protocol.responses_api import ResponsesRequest
from headrace.protocol.sse import encode_event
from headrace.protocol.translation import events_type

_encode = msgspec.json.Encoder().encode
Fields = dict[str, Any]


def response_fields(
    request: ResponsesRequest, response_id: str, created_s: int, status: str
) -> Fields:
    """A response without output: what it repeats of its request."""
    text = request.text.format if request.text and request.text.format else None
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_s,
        "status": status,
        "background": bool(request.background),
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": request.reasoning or {"effort": None, "summary": None},
        "store": request.store is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": text or {"type": "text"}},
        "tool_choice": request.tool_choice or "auto",
        "tools": request.tools or [],
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
    }


class ResponsesTranslator:
    """One answer's translator; `response` is the response as far as it has come."""

    stream_type = events_type

    def __init__(self, request: ResponsesRequest, response_id: str, created_s: int) -> None:
        self.response = response_fields(request, response_id, created_s, "in_progress")
        self._items: list[Fields] = self.response["output"]
        self._suffix = response_id.removeprefix("resp_")
        self._open: Fields | None = None  # the item that gains deltas
        self._sequence = 0
        self._started = False

    def whole(self, body: bytes) -> bytes:
        """The response."""
        self._read(body)
        self._close()
        self._end()
        return _encode(self.response)

    def chunk(self, data: bytes) -> bytes:
        """The events that one chunk becomes; before the first ones the response begins."""
        begun = b""
        if not self._started:
            self._started = True
            begun = self._event("response.created", response=self.response)
            begun += self._event("response.in_progress", response=self.response)
        return begun + self._read(data)

    def finish(self) -> bytes:
        """The last item is done, and the response with it."""
        closed = self._close()
        self._end()
        kind = f"response.{self.response['status']}"
        return closed + self._event(kind, response=self.response)

    def error(self, status: int, body: bytes) -> bytes:
        """An error as it is: the shape is OpenAI's already."""
        return body

    def error_event(self, body: bytes) -> bytes:
        """The response fails."""
        self.fail(body)
        return self._event("response.failed", response=self.response)

    def fail(self, body: bytes) -> None:
        """Note the error in `body` as the response's end."""
        self._close()
        error = msgspec.json.decode(body).get("error") or {}
        self.response["status"] = "failed"
        self.response["error"] = {
            "code": "server_error",
            "message": str(error.get("message", "The answer failed.")),
        }

    def _read(self, data: bytes) -> bytes:
        events: list[bytes] = []
        for event in read_answer(data):
            if isinstance(event, ContentDelta):
                events.append(self._text("message", event.text))
            elif isinstance(event, ReasoningDelta):
                events.append(self._text("reasoning", event.text))
            elif isinstance(event, CallBegun):
                events.append(self._begin_call(event))
            elif isinstance(event, ArgumentsDelta):
                events.append(self._arguments(event.text))
            elif isinstance(event, Finished):
                if event.reason == "length":
                    self.response["incomplete_details"] = {"reason": "max_output_tokens"}
            else:
                self.response["usage"] = usage_fields(event)
        return b"".join(events)

    def _text(self, kind: str, text: str) -> bytes:
        begun = b""
        if self._open is None or self._open["type"] != kind:
            begun = self._begin_text(kind)
        item = self._open
        assert item is not None
        item["content"][0]["text"] += text
        name = "output_text" if kind == "message" else "reasoning_text"
        extra: Fields = {"logprobs": []} if kind == "message" else {}
        return begun + self._event(
            f"response.{name}.delta", **self._place(), content_index=0, delta=text, **extra
        )

    def _begin_text(self, kind: str) -> bytes:
        if kind == "message":
            part: Fields = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item: Fields = {"type": "message", "role": "assistant", "status": "in_progress"}
        else:
            part = {"type": "reasoning_text", "text": ""}
            item = {"type": "reasoning", "summary": [], "status": "in_progress"}
        begun = self._begin({**item, "content": []}, "msg" if kind == "message" else "rs")
        self._items[-1]["content"].append(part)
        return begun + self._event(
            "response.content_part.added", **self._place(), content_index=0, part=part
        )

    def _begin_call(self, event: CallBegun) -> bytes:
        item: Fields = {
            "type": "function_call",
            "call_id": event.id,
            "name": event.call.name,
            "arguments": "",
            "status": "in_progress",
        }
        return self._begin(item, "fc")

    def _arguments(self, text: str) -> bytes:
        assert self._open is not None, "arguments follow their call's beginning"
        self._open["arguments"] += text
        return self._event("response.function_call_arguments.delta", **self._place(), delta=text)

    def _begin(self, item: Fields, prefix: str) -> bytes:
        closed = self._close()
        item["id"] = f"{prefix}_{self._suffix}_{len(self._items)}"
        self._items.append(item)
        self._open = item
        index = len(self._items) - 1
        return closed + self._event("response.output_item.added", output_index=index, item=item)

    def _place(self) -> Fields:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._items) - 1}

    def _close(self) -> bytes:
        """The item that was open is done."""
        item = self._open
        if item is None:
            return b""
        place = self._place()
        events = b""
        if item["type"] == "function_call":
            events = self._event(
                "response.function_call_arguments.done",
                **place,
                name=item["name"],
                arguments=item["arguments"],
            )
        else:
            part = item["content"][0]
            extra: Fields = {"logprobs": []} if item["type"] == "message" else {}
            name = part["type"]
            text = part["text"]
            events = self._event(
                f"response.{name}.done", **place, content_index=0, text=text, **extra
            )
            events += self._event("response.content_part.done", **place, content_index=0, part=part)
        cut = self.response["incomplete_details"] is not None
        item["status"] = "incomplete" if cut else "completed"
        self._open = None
        index = len(self._items) - 1
        return events + self._event("response.output_item.done", output_index=index, item=item)

    def _end(self) -> None:
        cut = self.response["incomplete_details"] is not None
        self.response["status"] = "incomplete" if cut else "completed"

    def _event(self, kind: str, **fields: object) -> bytes:
        event: Mapping[str, object] = {
            "type": kind,
            "sequence_number": self._sequence,
            **fields,
        }
        self._sequence += 1
        return encode_event(_encode(event), kind)


def usage_fields(usage: AnswerUsage) -> Fields:
    """Token counts by the names of this API."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
