"""What a database driver says, in words that tell the operator what to do."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from headrace.base.errors import ConfigurationError, HeadraceError, SetupError, Unavailable

retry_after_s = 1.0

# Of PostgreSQL: lost connections, rollbacks to repeat, want of resources, an operator at work.
transient_classes = ("08", "40", "53", "57")
transient_states = ("25006", "55P03")  # a standby that does not write yet; a lock not had in time


@contextmanager
def translated(location: str) -> Iterator[None]:
    """Raise the errors of the database at `location` as ours."""
    try:
        yield
    except PoolTimeout:
        raise Unavailable(
            f"every connection to the database {location} is in use; try again",
            retry_after_s=retry_after_s,
        ) from None
    except DBAPIError as error:
        raise explain(error.orig or error, location) from error
    except sqlite3.Error as error:
        raise explain(error, location) from error


def explain(error: BaseException, location: str) -> HeadraceError:
    """Our error for a driver's."""
    is_postgres = type(error).__module__.startswith("psycopg")
    return (explain_postgres if is_postgres else explain_sqlite)(error, location)


def explain_sqlite(error: BaseException, location: str) -> HeadraceError:
    """Our error for one of SQLite, by its primary result code."""
    extended = getattr(error, "sqlite_errorcode", None)
    match extended & 0xFF if isinstance(extended, int) else None:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(
                f"another process keeps the database {location} locked; try again, and look for "
                "a stuck process if it lasts",
                retry_after_s=retry_after_s,
            )
        case sqlite3.SQLITE_FULL:
            return Unavailable(
                f"the disk that holds the database {location} is full; free some space",
                retry_after_s=retry_after_s,
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return SetupError(
                f"the database {location} is damaged or is not a database; move it away together "
                "with its -wal and -shm files, and restore a backup"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return ConfigurationError(
                f"the database {location} cannot be opened for writing; check that its directory "
                "exists and belongs to this user"
            )
        case sqlite3.SQLITE_IOERR:
            return Unavailable(
                f"the disk that holds the database {location} fails: {error}",
                retry_after_s=retry_after_s,
            )
    return SetupError(f"the database {location} does not work: {error}")


def explain_postgres(error: BaseException, location: str) -> HeadraceError:
    """Our error for one of psycopg, by SQLSTATE; without one the server was not reached at all."""
    state: str | None = getattr(error, "sqlstate", None)
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state is None and "password" in said.lower():
        state = "28P01"  # refused while connecting, before the driver has a result to read
    if state is None and "does not exist" in said:
        state = "3D000"
    if state is None or state[:2] in transient_classes or state in transient_states:
        return Unavailable(
            f"the database {location} does not answer ({said}); it is tried again",
            retry_after_s=retry_after_s,
        )
    if state[:2] in ("28", "3D") or state == "42501":
        return ConfigurationError(
            f"the database {location} refuses this user ({said}); check --database-url, and that "
            "the database exists and belongs to that user"
        )
    return SetupError(f"the database {location} does not work: {said}")
