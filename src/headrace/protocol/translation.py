"""Answers in another API's words: what a translator is, and how an answer's bytes pass through one.

A request of another API becomes a chat (or text completion) request; its answer, whole or a stream
of server-sent events, passes through a `TranslatedAnswer`, wherever it was made.
"""

from typing import Protocol

from headrace.protocol.chat_answers import is_error
from headrace.protocol.sse import SseDecoder, done_data, heartbeat

json_type = b"application/json"
events_type = b"text/event-stream; charset=utf-8"
lines_type = b"application/x-ndjson"


class AnswerTranslator(Protocol):
    """One answer's translator, of one API."""

    stream_type: bytes  # the content type of its streams

    def whole(self, body: bytes) -> bytes:
        """An unstreamed answer."""
        ...

    def chunk(self, data: bytes) -> bytes:
        """What one chunk of a stream becomes; may be nothing."""
        ...

    def finish(self) -> bytes:
        """What ends a stream that came to its end."""
        ...

    def error(self, status: int, body: bytes) -> bytes:
        """An error body, of OpenAI's shape, in place of an answer."""
        ...

    def error_event(self, body: bytes) -> bytes:
        """An error inside a stream, which ends it."""
        ...


class TranslatedAnswer:
    """One answer's bytes on their way through a translator: `begin`, then `feed` each piece."""

    def __init__(self, translator: AnswerTranslator) -> None:
        self._translator = translator
        self._status = 200
        self._events: SseDecoder | None = None  # of an answer that is a stream
        self._pieces: list[bytes] = []  # of one that is not
        self._is_over = False

    def begin(self, status: int, content_type: bytes) -> bytes:
        """The content type to send; `content_type` is that of the answer as it comes."""
        self._status = status
        if content_type.startswith(b"text/event-stream"):
            self._events = SseDecoder()
            return self._translator.stream_type
        return json_type

    def feed(self, data: bytes, *, last: bool) -> bytes:
        """What to send for more of the answer."""
        if self._events is None:
            self._pieces.append(data)
            return self._whole() if last else b""
        if data == heartbeat:
            return data  # a comment means the same in every API
        return b"".join([self._event(event.data) for event in self._events.feed(data)])

    def _whole(self) -> bytes:
        body = b"".join(self._pieces)
        if self._status >= 400:
            return self._translator.error(self._status, body)
        return self._translator.whole(body)

    def _event(self, data: bytes) -> bytes:
        if self._is_over:
            return b""
        if data == done_data:
            self._is_over = True
            return self._translator.finish()
        if is_error(data):
            self._is_over = True
            return self._translator.error_event(data)
        return self._translator.chunk(data)
