"""The model files of this node: fetched once however many replicas want them, in a thread.

`state` never waits: it says what is known now and starts a fetch where none is under way.
"""

import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.control.world import ModelFileState
from headrace.spec.models import VersionFile
from headrace.weights.file_facts import FileFacts, facts_of
from headrace.weights.sources import ResolvedModel, resolve

retry_after_s = 15.0  # between tries of a source that failed


Mark = tuple[int, int, int]  # changes whenever the file does: inode, bytes, modification time


def mark_of(path: Path) -> Mark | None:
    """What tells a file from a later one at its place; None: there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):  # whose times say when it was used (`weights/file_use.py`)
        return status.st_ino, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(slots=True)
class Fetch:
    """One source on its way; also the progress that `resolve` reports to."""

    label: str = "fetching the model"
    done_bytes: int = 0
    total_bytes: int | None = None
    resolved: ResolvedModel | None = None
    facts: FileFacts | None = None  # with it
    mark: Mark | None = None  # of what was verified
    failure: str | None = None
    retry_at_s: float = 0.0
    thread: threading.Thread | None = field(default=None, repr=False)

    def start(self, total_bytes: int | None, label: str) -> None:
        """Note that a step begins."""
        self.label, self.total_bytes, self.done_bytes = label, total_bytes, 0

    def advance(self, byte_count: int) -> None:
        """Note that this much more is done."""
        self.done_bytes += byte_count

    def finish(self) -> None:
        """Nothing to note: the end shows in `resolved` or `failure`."""

    @property
    def is_outdated(self) -> bool:
        """Whether what was fetched is not there any more as it was."""
        return self.resolved is not None and mark_of(self.resolved.path) != self.mark

    def state(self) -> ModelFileState:
        """What is known now."""
        if self.resolved is not None:
            return ModelFileState(path=str(self.resolved.path), facts=self.facts)
        if self.failure is not None:
            return ModelFileState(detail=self.failure)
        share = min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else None
        return ModelFileState(detail=self.label, progress=share)


class ModelFiles:
    """Fetches by source; bounded by the model versions that deployments name."""

    def __init__(self, cache_dir: Path, clock: Clock) -> None:
        self._cache_dir = cache_dir
        self._clock = clock
        self._fetches: dict[tuple[str, str | None], Fetch] = {}

    def state(
        self, source: str, sha256: str | None, files: Sequence[VersionFile] = ()
    ) -> ModelFileState:
        """Where the file lies, or how far its fetch is. A failed one is tried again in a while.

        `files` are those that the model version is made of, where they are known: each is checked
        by its own digest, and refused by its name."""
        now_s = self._clock.monotonic_s()
        fetch = self._fetches.get((source, sha256)) or self._unpinned(source, sha256)
        if fetch is not None and fetch.is_outdated:
            fetch = None  # somebody removed or changed it
        if fetch is None or (fetch.failure is not None and now_s >= fetch.retry_at_s):
            fetch = Fetch()
            self._fetches[(source, sha256)] = fetch
            fetch.thread = threading.Thread(
                target=self._run,
                args=(fetch, source, sha256, tuple(files)),
                name="model-fetch",
                daemon=True,
            )
            fetch.thread.start()
        return fetch.state()

    def _unpinned(self, source: str, sha256: str | None) -> Fetch | None:
        """What was fetched before the version had a digest, if it has that one."""
        fetch = self._fetches.get((source, None))
        if fetch is None or fetch.resolved is None or fetch.resolved.sha256 != sha256:
            return None
        self._fetches[(source, sha256)] = fetch
        return fetch

    def _run(
        self, fetch: Fetch, source: str, sha256: str | None, files: Sequence[VersionFile]
    ) -> None:
        try:
            resolved = resolve(source, self._cache_dir, fetch, expected=files)
        except HeadraceError as error:
            fetch.retry_at_s = self._clock.monotonic_s() + retry_after_s
            fetch.failure = error.message
            return
        if sha256 is not None and resolved.sha256 != sha256:
            fetch.retry_at_s = self._clock.monotonic_s() + retry_after_s
            fetch.failure = (
                f"{source}: its SHA-256 is {resolved.sha256}, the model version says {sha256}; "
                "make a new version for a changed file"
            )
            return
        fetch.mark = mark_of(resolved.path)
        fetch.facts = facts_of(resolved)
        fetch.resolved = resolved
