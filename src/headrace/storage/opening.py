"""Which database: the one whose address is given, else the file in the data directory."""

from pathlib import Path

from headrace.base.clock import Clock
from headrace.storage.database import Database
from headrace.storage.postgres import open_postgres
from headrace.storage.sqlite import open_sqlite


def open_database(path: Path, url: str | None = None, clock: Clock | None = None) -> Database:
    """Open PostgreSQL at `url`, or SQLite at `path` where there is no address."""
    return open_postgres(url, clock) if url else open_sqlite(path, clock)
