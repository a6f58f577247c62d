"""A store whose reads come from memory until the store changes: for loops that look all the time.

A kind is read whole, once a revision; the revision is asked for at most once in `max_age_s`, so a
change by anybody else is seen so late. This store's own changes are seen at once. What is read is
written by its version, so nobody acts on what is no longer true: a Conflict, and the next look.
"""

import builtins
import threading
from typing import Any, TypeVar, cast

from headrace.base.clock import Clock
from headrace.spec.resource import Resource
from headrace.storage.sessions import Sessions
from headrace.storage.store import Store, no_resource

R = TypeVar("R", bound=Resource)


class CachedStore(Store):
    """Safe from any thread. Inside a transaction it reads what that sees, past its memory."""

    def __init__(self, sessions: Sessions, clock: Clock, max_age_s: float) -> None:
        super().__init__(sessions)
        self._clock = clock
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._revision = -1
        self._asked_s = -max_age_s
        self._kinds: dict[type[Resource], dict[str, Any]] = {}  # by id, in the order of creation

    def create(self, resource: R) -> R:
        """As `Store.create`."""
        try:
            return super().create(resource)
        finally:
            self._forget()

    def update(self, resource: R) -> R:
        """As `Store.update`."""
        try:
            return super().update(resource)
        finally:
            self._forget()

    def delete(self, resource: Resource) -> None:
        """As `Store.delete`."""
        try:
            super().delete(resource)
        finally:
            self._forget()

    def get(self, kind: type[R], resource_id: str) -> R:
        """As `Store.get`."""
        if self._sessions.is_joined:
            return super().get(kind, resource_id)
        found = self._all(kind).get(resource_id)
        if found is None:
            raise no_resource(kind.kind, resource_id)
        return found

    def find(self, kind: type[R], name: str, parent_id: str = "") -> R | None:
        """As `Store.find`."""
        if self._sessions.is_joined:
            return super().find(kind, name, parent_id)
        for item in self._all(kind).values():
            if item.name == name and item.parent_id == parent_id:
                return item
        return None

    def list(self, kind: type[R], parent_id: str | None = None) -> builtins.list[R]:
        """As `Store.list`."""
        if self._sessions.is_joined:
            return super().list(kind, parent_id)
        items = self._all(kind).values()
        return [item for item in items if parent_id is None or item.parent_id == parent_id]

    def revision(self) -> int:
        """As `Store.revision`, as of `max_age_s` ago at the earliest."""
        with self._lock:
            return self._checked()

    def _all(self, kind: type[R]) -> dict[str, R]:
        with self._lock:
            self._checked()
            known = self._kinds.get(kind)
            if known is None:
                known = {item.id: item for item in super().list(kind)}
                self._kinds[kind] = known
            return cast(dict[str, R], known)

    def _checked(self) -> int:
        """The revision; what was read before another one is forgotten."""
        now_s = self._clock.monotonic_s()
        if now_s - self._asked_s >= self._max_age_s:
            revision = super().revision()
            self._asked_s = now_s
            if revision != self._revision:
                self._kinds.clear()
                self._revision = revision
        return self._revision

    def _forget(self) -> None:
        """Have the next read ask; a reader that is at work has the lock, and is forgotten too."""
        with self._lock:
            self._kinds.clear()
            self._asked_s = -self._max_age_s
