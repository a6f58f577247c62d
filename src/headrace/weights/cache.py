"""The local model cache: files by their SHA-256, and which reference led to which.

    <root>/blobs/sha256/<digest>   whole, verified files; put there by one atomic rename
    <root>/directories/<digest>/   models of several files, as links to blobs
    <root>/index/<key>.json        reference -> digest, so that a second start fetches nothing
    <root>/partial/<key>*          what is being fetched; continued by the next try
    <root>/locks/<key>             held while it is fetched, so that processes take turns

A key is the expected digest, or the SHA-256 of a reference that does not say one.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import SourceError
from headrace.weights.reference import digest_pattern

chunk_bytes = 1 << 20
check_prefix = "the numbers of "  # of a record that says that a file was checked, and names nothing


@dataclass(frozen=True, slots=True)
class ModelCache:
    """One cache directory; processes share it."""

    root: Path

    def blob_path(self, sha256: str) -> Path:
        """Where a file of that digest is, if it is here."""
        return self.root / "blobs" / "sha256" / sha256

    def directory_path(self, sha256: str) -> Path:
        """Where a model of several files is, if it is here; the place above it exists."""
        return self._directory("directories") / sha256

    def partial_path(self, key: str) -> Path:
        """Where an unfinished file of that key is; its directory exists."""
        return self._directory("partial") / key

    def find(self, key: str) -> str | None:
        """The digest that a key led to, if it is remembered; the blob may be gone since."""
        try:
            record = json.loads((self.root / "index" / f"{key}.json").read_bytes())
        except (OSError, ValueError):
            return None
        digest = record.get("sha256") if isinstance(record, dict) else None
        return digest if isinstance(digest, str) and digest_pattern.fullmatch(digest) else None

    def remember(
        self, key: str, reference: str, sha256: str, *, quantizer: int | None = None
    ) -> None:
        """Write down what a key led to; SourceError if the cache cannot be written.

        `quantizer` is the version that made a quantized copy."""
        directory = self._directory("index")
        temporary = directory / f"{key}.{os.getpid()}.tmp"
        try:
            record: dict[str, str | int] = {"reference": reference, "sha256": sha256}
            if quantizer is not None:
                record["quantizer"] = quantizer
            temporary.write_text(json.dumps(record))
            temporary.replace(directory / f"{key}.json")
        except OSError as error:
            raise write_failed(temporary, error) from error

    def adopt(self, partial: Path, sha256: str) -> Path:
        """Make a whole, verified file a blob, atomically."""
        blob = self.blob_path(sha256)
        self._directory("blobs/sha256")
        try:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.chmod(0o444)
            partial.replace(blob)
        except OSError as error:
            raise write_failed(blob, error) from error
        return blob

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the right to fetch that key; waits while another process has it."""
        path = self._directory("locks") / key
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise write_failed(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _directory(self, name: str) -> Path:
        directory = self.root / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_failed(directory, error) from error
        return directory


def key_of(text: str) -> str:
    """A file name for any reference."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def write_failed(path: Path, error: OSError) -> SourceError:
    """What to tell the user when the cache's disk does not take what was fetched."""
    return SourceError(
        f"{path}: cannot write to the model cache ({error.strerror or error}); free some space or "
        "point HEADRACE_CACHE_DIR at another directory. What was fetched so far is kept.",
        path=str(path),
    )
