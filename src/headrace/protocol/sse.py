"""Server-sent events, both ways: values to bytes, and any cut of bytes back to events.

The format is the HTML standard's "event stream": lines of `field: value`, an empty line ends an
event, a line that starts with a colon is a comment.
"""

from typing import NamedTuple

done_event = b"data: [DONE]\n\n"
done_data = b"[DONE]"
heartbeat = b": waiting\n\n"  # a comment: keeps connections open, and every client skips it
event_bytes_max = 4 * 1024 * 1024  # far above any chunk; bounds a hostile peer's buffer


class EventTooLarge(ValueError):
    """A peer sent an event over the decoder's bound, or never ended one."""


class SseEvent(NamedTuple):
    """One event: its data lines joined by newlines, and its name ("" is the default, message)."""

    data: bytes
    name: str = ""


def encode_event(data: bytes, name: str = "") -> bytes:
    """One event; newlines in `data` become further data lines."""
    head = b"event: %b\n" % name.encode() if name else b""
    if b"\n" in data or b"\r" in data:
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        return head + b"".join(b"data: %b\n" % line for line in lines) + b"\n"
    return head + b"data: " + data + b"\n\n"


class SseDecoder:
    """Takes bytes as they arrive, however they are cut, and gives whole events."""

    def __init__(self, event_bytes_max: int = event_bytes_max) -> None:
        self._event_bytes_max = event_bytes_max
        self._line = bytearray()  # the unfinished line
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._name = ""
        self._after_carriage_return = False
        self._at_start = True

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that `data` completes; EventTooLarge if one grows over the bound."""
        if not data:
            return []
        if self._is_one_event(data):
            return [SseEvent(data[6:-2])]
        if self._after_carriage_return and data.startswith(b"\n"):
            data = data[1:]  # the second half of a CRLF that was cut in two
        self._after_carriage_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *ended, rest = data.split(b"\n")
        events: list[SseEvent] = []
        if ended and self._line:
            ended[0] = bytes(self._line) + ended[0]
            self._line.clear()
        for line in ended:
            self._take_line(line, events)
        self._line += rest
        if len(self._line) + self._data_bytes > self._event_bytes_max:
            raise EventTooLarge(f"an event is larger than {self._event_bytes_max} bytes")
        return events

    def _is_one_event(self, data: bytes) -> bool:
        """Whether this is a data line and its empty line, and nothing else: nearly always."""
        return (
            data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and data.find(b"\n") == len(data) - 2
            and b"\r" not in data
            and not (self._line or self._data or self._name)
            and not (self._at_start or self._after_carriage_return)
            and len(data) <= self._event_bytes_max
        )

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(SseEvent(b"\n".join(self._data), self._name))
            self._data = []
            self._data_bytes = 0
            self._name = ""
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._event_bytes_max:
                raise EventTooLarge(f"an event is larger than {self._event_bytes_max} bytes")
        elif field == b"event":
            self._name = value.decode(errors="replace")
