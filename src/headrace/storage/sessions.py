"""Transactions: how the stores read and write, whatever the database is."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from headrace.storage.failures import translated


class Sessions:
    """Transactions on one database; safe to use from any thread.

    Writers of this process take turns on a lock, because they wait fairly there and by polling
    inside SQLite; writers of other processes are waited for by the driver. What a thread reads and
    writes inside its own writing block joins that transaction."""

    def __init__(
        self, engine: Engine, location: str, writer_options: Mapping[str, object] | None = None
    ) -> None:
        """`writer_options` are SQLAlchemy's execution options of transactions that write."""
        self.engine = engine
        self.location = location
        self._writing = threading.Lock()
        self._joined = threading.local()  # `.connection`: of the block that this thread is in
        self._writer_engine = engine.execution_options(
            headrace_writes=True, **(writer_options or {})
        )

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one consistent state and changes nothing."""
        joined = self._open_connection()
        if joined is not None:
            yield joined
            return
        with translated(self.location), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that commits at the end of the block, or not at all.

        Inside another one of the same thread it is a part of that: what fails in it is undone
        alone, and what succeeds is committed with the rest."""
        joined = self._open_connection()
        if joined is not None:
            with translated(self.location), joined.begin_nested():
                yield joined
            return
        with (
            self._writing,
            translated(self.location),
            self._writer_engine.begin() as connection,
        ):
            self._joined.connection = connection
            try:
                yield connection
            finally:
                self._joined.connection = None

    @property
    def is_joined(self) -> bool:
        """Whether this thread is inside a writing block, whose changes only it sees."""
        return self._open_connection() is not None

    def _open_connection(self) -> Connection | None:
        connection: Connection | None = getattr(self._joined, "connection", None)
        return connection
