"""Which of several control planes acts: the one that holds a lock of the database.

    acquire ──got it──> leading ──renew says no──> lost ──acquire──> ...

PostgreSQL frees the lock when the leader's connection ends, however it ends. A leader that is cut
off does not know that for a while; so it calls `renew` before it acts, stops when that says no, and
what it writes carries the version that it read (`Store.update` refuses a stale one). `term` grows
with each leader, for whatever outlives a leader to tell an old order from a new one.

SQLite's one control plane always leads: the supervisor's lock on the data directory sees to it.
"""

from contextlib import suppress
from typing import Protocol, cast

from sqlalchemy import Connection, insert, update
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from headrace.storage.sessions import Sessions
from headrace.storage.tables import counters

leader_lock = 0x6865_6164_0002
term_counter = "leader_term"


class Leadership(Protocol):
    """One candidate; one thread at a time uses it."""

    term: int  # of the last time it led; 0: never

    def acquire(self) -> bool:
        """Lead if nobody else does; True also if it leads already. Never waits or raises."""
        ...

    def renew(self) -> bool:
        """Whether it still leads, asked of the database; False from then on until `acquire`."""
        ...

    def lost(self) -> bool:
        """Whether it led and does not any more, as far as it was told."""
        ...

    def release(self) -> None:
        """Let another one lead, at once."""
        ...


def leadership_of(sessions: Sessions) -> Leadership:
    """A candidate of this database."""
    if sessions.engine.dialect.name == "postgresql":
        return LockLeadership(sessions)
    return OnlyLeader()


class OnlyLeader:
    """Leads whenever it wants to."""

    def __init__(self) -> None:
        self.term = 0

    def acquire(self) -> bool:
        """As `Leadership.acquire`."""
        self.term = 1
        return True

    def renew(self) -> bool:
        """As `Leadership.renew`."""
        return self.term > 0

    def lost(self) -> bool:
        """As `Leadership.lost`."""
        return False

    def release(self) -> None:
        """As `Leadership.release`."""
        self.term = 0


class LockLeadership:
    """Leads while a connection of its own holds the advisory lock."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._connection: Connection | None = None
        self.term = 0

    def acquire(self) -> bool:
        """As `Leadership.acquire`."""
        if self.renew():
            return True
        connection: Connection | None = None
        try:
            connection = self._sessions.engine.connect()
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            question = f"SELECT pg_try_advisory_lock({leader_lock})"
            if connection.exec_driver_sql(question).scalar_one():
                self.term = next_term(connection)
                self._connection, connection = connection, None
        except (DBAPIError, PoolTimeout):
            pass  # the database is away, so nobody is told to lead
        finally:
            if connection is not None:
                discard(connection)
        return self._connection is not None

    def renew(self) -> bool:
        """As `Leadership.renew`."""
        if self._connection is None:
            return False
        try:
            # The lock is this session's, so a session that answers still has it.
            self._connection.exec_driver_sql("SELECT 1")
        except DBAPIError:
            connection, self._connection = self._connection, None
            discard(connection)
        return self._connection is not None

    def lost(self) -> bool:
        """As `Leadership.lost`."""
        return self.term > 0 and self._connection is None

    def release(self) -> None:
        """As `Leadership.release`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):
                # The end of the session frees it too, but some moments later.
                connection.exec_driver_sql(f"SELECT pg_advisory_unlock({leader_lock})")
            discard(connection)


def discard(connection: Connection) -> None:
    """End the session itself: a pooled connection would keep the lock."""
    with suppress(OperationalError):
        connection.invalidate()
    connection.close()


def next_term(connection: Connection) -> int:
    """Count one more leader."""
    counted = connection.execute(
        update(counters)
        .where(counters.c.name == term_counter)
        .values(value=counters.c.value + 1)
        .returning(counters.c.value)
    ).scalar_one_or_none()
    if counted is None:
        connection.execute(insert(counters).values(name=term_counter, value=1))
        return 1
    return cast(int, counted)
