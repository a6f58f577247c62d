"""A recorded answer as bytes for the store, and back: so that any gateway may give it again."""

import zlib
from collections.abc import Sequence

import msgspec

from headrace.http.asgi import Header, Message

kept_answer_bytes_max = 16 * 1024 * 1024  # compressed: all of what a gateway itself remembers


class Packed(msgspec.Struct, array_like=True):
    """Headers and the pieces of the body, which are a stream's events."""

    status: int
    headers: list[Header]
    pieces: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packed).decode


def packed(messages: Sequence[Message]) -> bytes | None:
    """A complete answer as bytes; None: it is too large to be kept."""
    start, *bodies = messages
    whole = Packed(start["status"], start["headers"], [each.get("body", b"") for each in bodies])
    data = zlib.compress(_encode(whole), level=1)
    return data if len(data) <= kept_answer_bytes_max else None


def unpacked(data: bytes) -> list[Message]:
    """The answer's messages as they were recorded."""
    whole = _decode(zlib.decompress(data))
    last = len(whole.pieces) - 1
    return [
        {"type": "http.response.start", "status": whole.status, "headers": whole.headers},
        *(
            {"type": "http.response.body", "body": piece, "more_body": number < last}
            for number, piece in enumerate(whole.pieces)
        ),
    ]
