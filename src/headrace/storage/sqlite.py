"""SQLite as the embedded default: one file, several processes, one writer at a time.

Write-ahead logging lets readers go on while one writes. Commits are synced to the disk
(`synchronous=FULL`), because a journal is deleted once its records are committed here.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import ConnectionPoolEntry

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import ConfigurationError
from headrace.storage.database import Database
from headrace.storage.failures import translated
from headrace.storage.schema_version import is_current, migrate
from headrace.storage.sessions import Sessions

default_busy_timeout_s = 10.0  # how long a writer waits for the writers of other processes
connections_max = 32  # threads that read at once; as many as asyncio's default executor has
pool_timeout_s = 10.0


def open_sqlite(
    path: Path | str, clock: Clock | None = None, *, busy_timeout_s: float = default_busy_timeout_s
) -> Database:
    """Open the database file, make it if it is missing, and bring it to this program's tables.

    The file is readable by its owner only. SetupError if it is damaged, newer than this program
    or out of reach; Unavailable if it is locked or the disk is full."""
    path = Path(path)
    create_private(path)
    engine = make_engine(path, busy_timeout_s)
    sessions = Sessions(engine, str(path))
    try:
        with translated(str(path)):
            use_write_ahead_log(path, busy_timeout_s)
        with sessions.read() as connection:
            current = is_current(connection, str(path))
        if not current:
            migrate(sessions)
    except BaseException:
        engine.dispose()
        raise
    return Database(sessions, clock or SystemClock())


def create_private(path: Path) -> None:
    """Make an empty file with mode 0600; the log files beside it inherit the mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ConfigurationError(
            f"the database {path} cannot be opened for writing ({error.strerror}); check that its "
            "directory exists and belongs to this user"
        ) from error


def use_write_ahead_log(path: Path, busy_timeout_s: float) -> None:
    """Set the journal mode, which stays with the file."""
    with closing(sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def make_engine(path: Path, busy_timeout_s: float) -> Engine:
    """An engine whose transactions begin as asked: reads deferred, writes immediate."""
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=str(path)),
        connect_args={"timeout": busy_timeout_s, "check_same_thread": False},
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=pool_timeout_s,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # the driver begins nothing; `begin` below does
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A deferred transaction that turns to writing fails at once if another one wrote
        # meanwhile; an immediate one waits for its turn instead.
        writes = connection.get_execution_options().get("headrace_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
