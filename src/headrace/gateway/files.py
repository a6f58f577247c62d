"""OpenAI's files: what batches read and write. Kept for the project until it deletes them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import ClientClosed, InvalidRequest, PayloadTooLarge
from headrace.base.ids import new_id
from headrace.gateway.content_store import ContentStore
from headrace.gateway.multipart import MultipartReader, PartBegun, boundary_of
from headrace.gateway.route_table import Call, Route
from headrace.http.asgi import Receive, header
from headrace.http.pages import page_of

file_bytes_max = 200 * 1024 * 1024  # as of OpenAI's batch inputs
files_per_project_max = 1_000
piece_timeout_s = 60.0  # between two pieces of an upload
write_bytes = 1024 * 1024  # written by a thread at once, and sent at once
field_bytes_max = 1024  # of the form's fields beside the file
parts_max = 64  # of the form
form_bytes_max = file_bytes_max + 1024 * 1024  # with all that is not the file
purposes = frozenset({"batch", "user_data", "evals", "assistants", "fine-tune", "vision"})


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file as OpenAI's clients know it."""

    id: str
    bytes: int
    created_at: int  # seconds since the epoch
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"


class Deleted(msgspec.Struct, frozen=True):
    """The answer of a deletion."""

    id: str
    object: str
    deleted: bool = True


class FileStore:
    """The files by project."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.store = ContentStore(directory, "files")
        self._clock = clock

    def get(self, project_id: str, file_id: str) -> FileObject:
        """A file's description; NotFound if the project has none of this id."""
        return self.store.get(project_id, file_id, FileObject)

    def content(self, project_id: str, file_id: str) -> Path:
        """Where a file's bytes lie."""
        self.get(project_id, file_id)
        return self.store.path(project_id, file_id, "content")

    def begin(self, project_id: str) -> tuple[str, Path]:
        """A new file's id, and where its bytes are to be written before `finish`."""
        if len(self.store.ids(project_id)) >= files_per_project_max:
            raise InvalidRequest(
                f"This project has {files_per_project_max} files already; delete some."
            )
        file_id = new_id("file", self._clock)
        path = self.store.path(project_id, file_id, "content")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return file_id, path

    def finish(self, project_id: str, file_id: str, filename: str, purpose: str) -> FileObject:
        """Make a file that was written known."""
        size_bytes = self.store.path(project_id, file_id, "content").stat().st_size
        file = FileObject(
            id=file_id,
            bytes=size_bytes,
            created_at=int(self._clock.wall_s()),
            filename=filename,
            purpose=purpose,
        )
        self.store.put(project_id, file_id, file)
        return file

    def list(self, project_id: str) -> list[FileObject]:
        """The project's files, the newest first."""
        return [self.get(project_id, file_id) for file_id in self.store.ids(project_id)]


class Upload:
    """A form that is being received."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = ""
        self._parts = 0
        self._fields: dict[str, bytes] = {}
        self._pieces: list[bytes] = []
        self._pending_bytes = 0
        self.size_bytes = 0
        self.filename: str | None = None

    def begin(self, part: PartBegun) -> None:
        """A part begins; InvalidRequest if there are too many, or another file."""
        self._part = part.name
        self._parts += 1
        if self._parts > parts_max:
            raise InvalidRequest(f"The form has more than {parts_max} parts.")
        if part.name == "file":
            if self.filename is not None:
                raise InvalidRequest("Send one file at a time.", param="file")
            self.filename = part.filename or "file"

    async def take(self, data: bytes) -> None:
        """More of the part."""
        if self._part != "file":
            value = self._fields.get(self._part, b"") + data
            if len(value) > field_bytes_max:
                raise InvalidRequest(f"The form's field {self._part[:64]!r} is too long.")
            self._fields[self._part] = value
            return
        self.size_bytes += len(data)
        if self.size_bytes > file_bytes_max:
            raise PayloadTooLarge(f"A file has at most {file_bytes_max} bytes; split it.")
        self._pieces.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= write_bytes:
            await self.flush()

    async def flush(self) -> None:
        """Write what was taken."""
        data, self._pieces, self._pending_bytes = b"".join(self._pieces), [], 0
        await asyncio.to_thread(append, self._path, data)

    @property
    def purpose(self) -> str:
        """What the file is for; InvalidRequest if the form does not say."""
        purpose = self._fields.get("purpose", b"").decode(errors="replace")
        if purpose not in purposes:
            raise InvalidRequest(
                f"purpose is one of {', '.join(sorted(purposes))}.", param="purpose"
            )
        return purpose


class FileRoutes:
    """/v1/files."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    @property
    def routes(self) -> tuple[Route, ...]:
        """Its routes."""
        return (
            Route("/v1/files", "POST", self._upload),
            Route("/v1/files", "GET", self._list),
            Route("/v1/files/{file}", "GET", self._one),
            Route("/v1/files/{file}", "DELETE", self._delete),
            Route("/v1/files/{file}/content", "GET", self._content),
        )

    async def _upload(self, call: Call) -> None:
        reader = MultipartReader(boundary_of(header(call.scope, b"content-type")))
        project_id = call.principal.project.id
        file_id, path = await asyncio.to_thread(self._files.begin, project_id)
        upload, form_bytes = Upload(path), 0
        try:
            async for data in pieces(call.receive):
                form_bytes += len(data)
                if form_bytes > form_bytes_max:
                    raise PayloadTooLarge(f"A form has at most {form_bytes_max} bytes.")
                for event in reader.feed(data):
                    if isinstance(event, PartBegun):
                        upload.begin(event)
                    else:
                        await upload.take(event.data)
            if not reader.is_over or upload.filename is None:
                raise InvalidRequest("The form has no file, or its end is missing.", param="file")
            await upload.flush()
            filename, purpose = upload.filename, upload.purpose
            file = await asyncio.to_thread(
                self._files.finish, project_id, file_id, filename, purpose
            )
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        await call.answer_value(file)

    async def _list(self, call: Call) -> None:
        files = await asyncio.to_thread(self._files.list, call.principal.project.id)
        await call.answer_value(page_of(call.scope, files))

    async def _one(self, call: Call) -> None:
        project_id = call.principal.project.id
        await call.answer_value(
            await asyncio.to_thread(self._files.get, project_id, call.parameter)
        )

    async def _delete(self, call: Call) -> None:
        project_id = call.principal.project.id
        await asyncio.to_thread(self._files.store.delete, project_id, call.parameter)
        await call.answer_value(Deleted(call.parameter, "file"))

    async def _content(self, call: Call) -> None:
        project_id = call.principal.project.id
        path = await asyncio.to_thread(self._files.content, project_id, call.parameter)
        call.record.status = 200
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % path.stat().st_size),
        ]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        with path.open("rb") as file:
            while data := await asyncio.to_thread(file.read, write_bytes):
                await call.send({"type": "http.response.body", "body": data, "more_body": True})
        await call.send({"type": "http.response.body", "body": b"", "more_body": False})


async def pieces(receive: Receive) -> AsyncIterator[bytes]:
    """A body as it comes; InvalidRequest if nothing more comes for `piece_timeout_s`."""
    more = True
    while more:
        try:
            async with asyncio.timeout(piece_timeout_s):
                message = await receive()
        except TimeoutError:
            raise InvalidRequest(
                f"Nothing of the body came for {piece_timeout_s:.0f} s; send it again."
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientClosed("The client went away while it sent a file.")
        more = message.get("more_body", False)
        yield message.get("body", b"")


def append(path: Path, data: bytes) -> None:
    """Write at a file's end."""
    with path.open("ab") as file:
        file.write(data)
