"""A form with audio or images on its way to an engine: on disk beyond a megabyte, sent as often as
it takes, with the engine's own name for the model in it.

The form is taken apart as it comes and written anew, so that nothing of its shape is the caller's:
names, file names and content types are checked, and the boundary is a new one, which no content can
know.
"""

import asyncio
import hashlib
import re
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile

from headrace.base.errors import InvalidRequest, PayloadTooLarge, Unavailable
from headrace.gateway.multipart import MultipartReader, PartBegun, boundary_of
from headrace.http.connection import SizedBody

form_bytes_max = 64 * 1024 * 1024  # OpenAI takes 25 MB of audio, 50 MB an image
memory_bytes_max = 1024 * 1024  # of one form; the rest is on disk
field_bytes_max = 128 * 1024  # of a part that is no file
beginning_bytes = 1024  # of the first file, that are looked at
parts_max = 64
file_name_length_max = 255
piece_bytes = 256 * 1024
name_pattern = re.compile(r"[A-Za-z0-9_\-\[\]\.]{1,64}")
file_name_odd = re.compile(r'[\x00-\x1f"\\/]')
type_pattern = re.compile(r"[A-Za-z0-9!#$&^_.+\-]+/[A-Za-z0-9!#$&^_.+\-]+(; ?[A-Za-z0-9=_.+\-]+)?")


class MediaForm:
    """One form."""

    def __init__(self) -> None:
        self._file = spooled()
        self._lock = threading.Lock()  # two attempts may read at once
        self._boundary = f"headrace-{secrets.token_hex(16)}"
        self._size_bytes = 0
        self._digest = hashlib.sha256()
        self._holders = 0
        self._parts = 0
        self._is_file = False
        self._fields: list[tuple[str, bytearray]] = []  # of the parts that are no files
        self.file_bytes = 0  # of all files together
        self.file_names: list[str] = []  # the fields that are files
        self.beginning = bytearray()  # of the first file

    async def read(self, content_type: str | None, body: AsyncIterator[bytes]) -> None:
        """Take the whole form; InvalidRequest or PayloadTooLarge says what is wrong with it."""
        reader = MultipartReader(boundary_of(content_type))
        received_bytes = 0
        async for data in body:
            received_bytes += len(data)
            if received_bytes > form_bytes_max:
                raise PayloadTooLarge(
                    f"The form is larger than {form_bytes_max} bytes; send less.",
                    limit_bytes=form_bytes_max,
                )
            for event in reader.feed(data):
                if isinstance(event, PartBegun):
                    await self._begin(event)
                else:
                    await self._take(event.data)
        if not reader.is_over:
            raise InvalidRequest("The end of the form is missing.")
        await self._end_file()
        for name, value in self._fields:
            if name != "model":
                await self._write(self._text_part(name, value))

    def field(self, name: str) -> str | None:
        """The value of a part that is no file."""
        value = next((value for each, value in self._fields if each == name), None)
        return None if value is None else value.decode(errors="replace")

    @property
    def field_names(self) -> list[str]:
        """The fields that are no files."""
        return [name for name, _ in self._fields]

    @property
    def files(self) -> int:
        """How many there are."""
        return len(self.file_names)

    @property
    def content_type(self) -> str:
        """Of the form as it is sent on."""
        return f"multipart/form-data; boundary={self._boundary}"

    @property
    def fingerprint(self) -> bytes:
        """Of all that it says, whatever its boundary was."""
        return self._digest.digest()

    def body(self, model_name: str) -> SizedBody:
        """The form with this model's name; may be asked for again."""
        head = self._text_part("model", model_name.encode())
        tail = f"--{self._boundary}--\r\n".encode()
        length = len(head) + self._size_bytes + len(tail)
        return SizedBody(self.content_type, length, self._pieces(head, tail))

    async def _pieces(self, head: bytes, tail: bytes) -> AsyncIterator[bytes]:
        yield head
        position = 0
        while data := await asyncio.to_thread(self._read_at, position):
            position += len(data)
            yield data
        yield tail

    def _read_at(self, position: int) -> bytes:
        with self._lock:
            if self._file.closed:
                raise Unavailable("The form is gone; send it again.", retry_after_s=1.0)
            self._file.seek(position)
            return self._file.read(piece_bytes)

    async def _begin(self, part: PartBegun) -> None:
        await self._end_file()
        self._parts += 1
        if self._parts > parts_max:
            raise InvalidRequest(f"A form has at most {parts_max} parts.")
        if not name_pattern.fullmatch(part.name):
            raise InvalidRequest("A part of the form has no name that a field can have.")
        self._is_file = part.filename is not None
        self._digest.update(f"\n{part.name}\n{part.filename}\n".encode())
        if self._is_file:
            self.file_names.append(part.name)
            await self._write(self._file_head(part))
        elif self.field(part.name) is not None and not part.name.endswith("[]"):
            raise InvalidRequest(f"The form has {part.name!r} twice.", param=part.name)
        else:
            self._fields.append((part.name, bytearray()))

    async def _take(self, data: bytes) -> None:
        self._digest.update(data)
        if self._is_file:
            self.file_bytes += len(data)
            if self.files == 1 and len(self.beginning) < beginning_bytes:
                self.beginning += data[: beginning_bytes - len(self.beginning)]
            await self._write(data)
            return
        name, value = self._fields[-1]
        value += data
        if len(value) > field_bytes_max:
            raise InvalidRequest(f"The form's field {name!r} is too long.", param=name)

    async def _end_file(self) -> None:
        if self._is_file:
            self._is_file = False
            await self._write(b"\r\n")

    def _text_part(self, name: str, value: bytes | bytearray) -> bytes:
        """A part that is no file."""
        head = f'--{self._boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        return head.encode() + value + b"\r\n"

    def _file_head(self, part: PartBegun) -> bytes:
        """The headers of a file, of which nothing is as it came unless it was harmless."""
        file_name = file_name_odd.sub("_", part.filename or "")[:file_name_length_max] or "file"
        media_type = part.content_type or ""
        if not type_pattern.fullmatch(media_type):
            media_type = "application/octet-stream"
        head = (
            f"--{self._boundary}\r\n"
            f'Content-Disposition: form-data; name="{part.name}"; filename="{file_name}"\r\n'
            f"Content-Type: {media_type}\r\n\r\n"
        )
        return head.encode()

    async def _write(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._size_bytes > memory_bytes_max:
            await asyncio.to_thread(self._file.write, data)
        else:
            self._file.write(data)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the form; when nobody holds it any more it is forgotten.

        A request that others may join goes on without the connection that brought the form."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                self.close()

    def close(self) -> None:
        """Forget it."""
        with self._lock:
            self._file.close()


def spooled() -> SpooledTemporaryFile[bytes]:
    """A file that is in memory as long as it is small."""
    return SpooledTemporaryFile(max_size=memory_bytes_max)
