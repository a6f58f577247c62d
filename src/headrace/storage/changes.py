"""Waits for the store to change: told by PostgreSQL, asked of SQLite.

A notice is a hint and nothing more: it carries nothing. Whoever waited reads the store's revision
and whatever it needs anew. So a notice that was lost with its connection, or that came twice,
changes only how soon that happens; a wait never lasts longer than it was asked to.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from headrace.base.errors import HeadraceError
from headrace.storage.sessions import Sessions

channel = "headrace_store"
poll_interval_s = 0.25  # of SQLite, and of PostgreSQL while it cannot be listened to


class Changes(Protocol):
    """Somebody who waits for changes; one thread uses it."""

    def wait(self, timeout_s: float) -> None:
        """Return when the store has changed, may have, or after `timeout_s`."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def notify(connection: Connection) -> None:
    """Tell whoever listens, once the transaction commits; nothing where nobody can."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"NOTIFY {channel}")


def changes_of(
    sessions: Sessions,
    revision: Callable[[], int],
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Changes:
    """The best way to wait that this database has."""
    polled = PolledChanges(revision, sleep, monotonic_s)
    if sessions.engine.dialect.name != "postgresql":
        return polled
    return ListenedChanges(sessions, polled)


class PolledChanges:
    """Asks for the revision now and then."""

    def __init__(
        self,
        revision: Callable[[], int],
        sleep: Callable[[float], None],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._revision = revision
        self._sleep = sleep
        self._monotonic_s = monotonic_s
        self._seen: int | None = None

    def wait(self, timeout_s: float) -> None:
        """As `Changes.wait`; while the database is away it waits on."""
        end_s = self._monotonic_s() + timeout_s
        while True:
            with suppress(HeadraceError):
                revision = self._revision()
                if revision != self._seen:
                    self._seen = revision
                    return
            left_s = end_s - self._monotonic_s()
            if left_s <= 0:
                return
            self._sleep(min(poll_interval_s, left_s))

    def close(self) -> None:
        """It holds nothing."""


class ListenedChanges:
    """Listens on a connection of its own; polls while it has none."""

    def __init__(self, sessions: Sessions, polled: PolledChanges) -> None:
        self._sessions = sessions
        self._polled = polled
        self._connection: Connection | None = None

    def wait(self, timeout_s: float) -> None:
        """As `Changes.wait`. The first wait, and the first after a lost connection, return at
        once, because nobody knows what was missed."""
        if self._connection is None:
            try:
                self._listen()
            except (DBAPIError, PoolTimeout):
                self._polled.wait(timeout_s)
            return
        driver = self._connection.connection.driver_connection
        assert driver is not None
        try:
            for _ in driver.notifies(timeout=timeout_s, stop_after=1):
                pass
        except self._sessions.engine.dialect.loaded_dbapi.Error:
            self.close()

    def close(self) -> None:
        """Stop listening; a connection that listened is not used for anything else."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OperationalError):
                connection.invalidate()
            connection.close()

    def _listen(self) -> None:
        connection = self._sessions.engine.connect()
        try:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql(f"LISTEN {channel}")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
