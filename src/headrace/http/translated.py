"""An ASGI `send` that turns an answer's bytes into another API's on their way out."""

from collections.abc import Sequence
from typing import Protocol

from headrace.http.asgi import Header, Message, Send

replaced_headers = frozenset({b"content-type", b"content-length"})


class BodyTranslator(Protocol):
    """What turns the bytes, one answer at a time."""

    def begin(self, status: int, content_type: bytes) -> bytes:
        """The content type to send for an answer of this status and type."""
        ...

    def feed(self, data: bytes, *, last: bool) -> bytes:
        """What to send for more of the body."""
        ...


def translated_send(send: Send, body: BodyTranslator, extra: Sequence[Header] = ()) -> Send:
    """A `send` for one answer; a whole one is sent when it is complete, a stream as it comes."""
    start: Message = {}

    async def translate(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
            content_type = dict(message["headers"]).get(b"content-type", b"")
            kept = [each for each in message["headers"] if each[0] not in replaced_headers]
            kept.append((b"content-type", body.begin(message["status"], content_type)))
            start["headers"] = [*kept, *extra]
            return
        last = not message.get("more_body", False)
        data = body.feed(message.get("body", b""), last=last)
        if start:
            if last:
                start["headers"].append((b"content-length", b"%d" % len(data)))
            elif not data:
                return
            await send(dict(start))
            start.clear()
        if data or last:
            await send({"type": "http.response.body", "body": data, "more_body": not last})

    return translate
