"""What a gateway keeps for its callers on disk: stored responses, files, batches.

    <directory>/<collection>/<project id>/<id>.json      the value
    <directory>/<collection>/<project id>/<id>.<kind>    its content, where it has some

A project sees its own only, because its id is part of the path. A value is replaced as a whole.
Methods touch the disk: async callers use a thread.
"""

import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.base.errors import NotFound
from headrace.ledger.disk import sync_directory

id_pattern = re.compile(r"[a-z]{1,16}_[0-9a-z]{26}")  # also keeps paths inside the directory
Value = TypeVar("Value")


class ContentStore:
    """One collection, of values of one type."""

    def __init__(self, directory: Path, collection: str) -> None:
        self._directory = directory / collection
        self._what = collection
        self._lock = threading.Lock()

    def put(self, project_id: str, value_id: str, value: object) -> None:
        """Keep a value in place of the earlier one; on stable storage on return, or OSError."""
        path = self.path(project_id, value_id, "json")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        try:
            with draft.open("wb") as file:
                file.write(msgspec.json.encode(value))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)  # half a value would hold room on a full disk
            raise
        sync_directory(path.parent)

    def get(self, project_id: str, value_id: str, kind: type[Value]) -> Value:
        """A value; NotFound if the project has none of this id."""
        try:
            data = self.path(project_id, value_id, "json").read_bytes()
        except FileNotFoundError:
            raise self.missing(value_id) from None
        return msgspec.json.decode(data, type=kind)

    def update(
        self, project_id: str, value_id: str, kind: type[Value], change: Callable[[Value], Value]
    ) -> Value:
        """Change a value that others, and other processes, may change too."""
        with self._locked():
            value = change(self.get(project_id, value_id, kind))
            self.put(project_id, value_id, value)
        return value

    def delete(self, project_id: str, value_id: str) -> None:
        """Forget a value with its content; NotFound if there is none."""
        path = self.path(project_id, value_id, "json")
        if not path.exists():
            raise self.missing(value_id)
        for each in path.parent.glob(f"{value_id}.*"):
            each.unlink(missing_ok=True)

    def ids(self, project_id: str) -> list[str]:
        """The project's, the newest first."""
        found = (self._directory / project_id).glob("*.json")
        return sorted((path.stem for path in found), reverse=True)

    def all_ids(self) -> Iterator[tuple[str, str]]:
        """Every project's, with the project's id."""
        for path in self._directory.glob("*/*.json"):
            yield path.parent.name, path.stem

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else updates meanwhile; the lock goes with the descriptor, and so with us."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock, (self._directory / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def path(self, project_id: str, value_id: str, kind: str) -> Path:
        """Where a value or its content lies, or would; NotFound for an id that can be none."""
        if not id_pattern.fullmatch(value_id):
            raise self.missing(value_id)
        return self._directory / project_id / f"{value_id}.{kind}"

    def missing(self, value_id: str) -> NotFound:
        """The error of an id that is not there."""
        return NotFound(f"There is no {value_id!r} among the {self._what} of this key's project.")
