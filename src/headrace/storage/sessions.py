"""Transactions: how the stores read and write, whatever the database is."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from headrace.storage.failures import translated


class Sessions:
    """Transactions on one database; safe to use from any thread.

    Writers of this process take turns on a lock, because they wait fairly there and by polling
    inside SQLite; writers of other processes are waited for by the driver."""

    def __init__(self, engine: Engine, location: str) -> None:
        self.engine = engine
        self.location = location
        self._writing = threading.Lock()
        self._writer_engine = engine.execution_options(headrace_writes=True)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one consistent state and changes nothing."""
        with translated(self.location), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that commits at the end of the block, or not at all."""
        with (
            self._writing,
            translated(self.location),
            self._writer_engine.begin() as connection,
        ):
            yield connection
