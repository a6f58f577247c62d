"""A file that arrives in pieces, perhaps over several tries, hashed as it grows."""

import hashlib
import shutil
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from headrace.base.errors import SourceError
from headrace.weights.cache import chunk_bytes, write_failed


class PartialFile:
    """Open it, and it continues where the last try ended."""

    def __init__(self, path: Path) -> None:
        """Open or create the file and hash what it has; SourceError if the disk refuses."""
        self.path = path
        self.size_bytes = 0
        self._hash = hashlib.sha256()
        try:
            self._file: BinaryIO = path.open("a+b", buffering=0)
        except OSError as error:
            raise write_failed(path, error) from error
        self._file.seek(0)
        while chunk := self._file.read(chunk_bytes):
            self._hash.update(chunk)
            self.size_bytes += len(chunk)

    def __enter__(self) -> "PartialFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; what it has stays."""
        self._file.close()

    @property
    def sha256(self) -> str:
        """The digest of what is there so far."""
        return self._hash.hexdigest()

    def append(self, data: bytes) -> None:
        """Add bytes; SourceError if the disk is full, and what fitted is kept."""
        rest = memoryview(data)
        while rest:
            try:
                written = self._file.write(rest) or 0
            except OSError as error:
                raise write_failed(self.path, error) from error
            self._hash.update(rest[:written])
            self.size_bytes += written
            rest = rest[written:]

    def restart(self) -> None:
        """Throw away what is there."""
        try:
            self._file.truncate(0)
        except OSError as error:
            raise write_failed(self.path, error) from error
        self.size_bytes = 0
        self._hash = hashlib.sha256()

    def require_space(self, byte_count: int) -> None:
        """SourceError if the disk has no room for that many more bytes."""
        free_bytes = shutil.disk_usage(self.path.parent).free
        if byte_count > free_bytes:
            raise SourceError(
                f"{self.path.parent}: {byte_count / 1e6:,.0f} more MB do not fit, "
                f"{free_bytes / 1e6:,.0f} are free; "
                "free some space or point HEADRACE_CACHE_DIR at another directory.",
                path=str(self.path),
            )
