"""One JSON line a request, of fields that are named here and nothing else.

No header, body, prompt, key, address or free text of a caller can get in, because there is no
field for it. Lines are buffered for `flush_interval_s` and written in one piece, by a thread,
because a file's disk may be busy with the journal's syncs.
"""

import asyncio
import threading
from typing import BinaryIO

import msgspec

flush_interval_s = 0.1
buffered_lines_max = 20_000  # two seconds of a gateway at its limit


class AccessRecord(msgspec.Struct, omit_defaults=True):
    """What may be known of a request; routes are templates, never the path that was sent."""

    time: float  # seconds since the Unix epoch, when it arrived
    request_id: str
    route: str = "unmatched"
    status: int = 0
    duration_ms: float = 0.0
    tenant_id: str | None = None
    project_id: str | None = None
    key_id: str | None = None
    model: str | None = None  # only once it was found in the registry
    endpoint_id: str | None = None
    attempts: int | None = None
    outcome: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    first_output_ms: float | None = None
    trace_id: str | None = None  # of a request whose trace is kept
    error: str | None = None  # its code


_encode = msgspec.json.Encoder().encode


class AccessLog:
    """A bounded buffer before a file; `None` as the file writes nothing."""

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._lock = threading.Lock()  # held while the file is written
        self.dropped = 0

    def write(self, record: AccessRecord) -> None:
        """Take a record; it is in the file within `flush_interval_s`."""
        if self._file is None:
            return
        if len(self._lines) >= buffered_lines_max:
            self.dropped += 1
            return
        self._lines.append(_encode(record))
        self._set_timer()

    def flush(self) -> None:
        """Write what is buffered; what the file does not take is dropped and counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._write(self._take())

    def _set_timer(self) -> None:
        if self._timer is None and self._writing is None and self._lines:
            self._timer = asyncio.get_running_loop().call_later(flush_interval_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(None, self._write, self._take())
        self._writing.add_done_callback(self._on_written)

    def _on_written(self, _: asyncio.Future[None]) -> None:
        self._writing = None
        self._set_timer()

    def _take(self) -> list[bytes]:
        lines, self._lines = self._lines, []
        return lines

    def _write(self, lines: list[bytes]) -> None:
        if self._file is None:
            return
        with self._lock:
            if not lines:
                return
            try:
                self._file.write(b"\n".join(lines) + b"\n")
                self._file.flush()
            except OSError:
                self.dropped += len(lines)
