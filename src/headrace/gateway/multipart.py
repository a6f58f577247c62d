"""multipart/form-data (RFC 7578) piece by piece: bytes in, events out, nothing kept but a tail.

preamble --boundary--> headers of a part -> its content --boundary--> ... --boundary---> end
"""

import re
from dataclasses import dataclass
from email.message import Message

from headrace.base.errors import InvalidRequest

header_bytes_max = 8192
boundary_length_max = 70  # RFC 2046


@dataclass(frozen=True, slots=True)
class PartBegun:
    """The headers of a part."""

    name: str
    filename: str | None
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class PartData:
    """A piece of the part's content."""

    data: bytes


Event = PartBegun | PartData


def boundary_of(content_type: str | None) -> bytes:
    """The boundary of a form; InvalidRequest if it is none."""
    message = Message()
    message["content-type"] = content_type or ""
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise InvalidRequest("Send the file as multipart/form-data.")
    if not 0 < len(boundary) <= boundary_length_max or not boundary.isascii():
        raise InvalidRequest("The form's boundary is malformed.")
    return boundary.encode()


class MultipartReader:
    """One form."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = b"\r\n"  # the first delimiter needs no line before it
        self._in_part = False
        self.is_over = False

    def feed(self, data: bytes) -> list[Event]:
        """What is known by more bytes; InvalidRequest if they are no form.

        What follows the end is no part of it, and is dropped."""
        if self.is_over:
            return []
        self._buffer += data
        events: list[Event] = []
        while not self.is_over and self._step(events):
            pass
        return events

    def _step(self, events: list[Event]) -> bool:
        """Take one delimiter with the headers behind it, or content; False: more is needed."""
        found = self._buffer.find(self._delimiter)
        if found < 0:
            # All but what may be the beginning of a delimiter.
            sure = len(self._buffer) - len(self._delimiter) + 1
            if sure > 0:
                self._content(self._buffer[:sure], events)
                self._buffer = self._buffer[sure:]
            return False
        after = found + len(self._delimiter)
        if self._buffer[after : after + 2] == b"--":
            self._content(self._buffer[:found], events)
            self.is_over = True
            self._buffer = b""
            return False
        end = self._buffer.find(b"\r\n\r\n", after)
        if end < 0:
            if len(self._buffer) - after > header_bytes_max:
                raise InvalidRequest("A part of the form has headers that are too large.")
            return False
        self._content(self._buffer[:found], events)
        events.append(part_begun(self._buffer[after:end]))
        self._in_part = True
        self._buffer = self._buffer[end + 4 :]
        return True

    def _content(self, data: bytes, events: list[Event]) -> None:
        if self._in_part and data:
            events.append(PartData(data))


disposition_pattern = re.compile(rb"content-disposition:\s*form-data\b([^\r\n]*)", re.IGNORECASE)
content_type_pattern = re.compile(rb"content-type:[ \t]*([!-~ ]{1,255})", re.IGNORECASE)
parameter_pattern = re.compile(rb';\s*(name|filename)="([^"]*)"', re.IGNORECASE)


def part_begun(headers: bytes) -> PartBegun:
    """A part by its headers."""
    disposition = disposition_pattern.search(headers)
    if disposition is None:
        raise InvalidRequest("A part of the form has no Content-Disposition.")
    found = {
        key.lower(): value.decode(errors="replace")
        for key, value in parameter_pattern.findall(disposition[1])
    }
    content_type = content_type_pattern.search(headers)
    return PartBegun(
        found.get(b"name", ""),
        found.get(b"filename"),
        None if content_type is None else content_type[1].decode().strip(),
    )
