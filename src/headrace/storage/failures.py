"""What a database driver says, in words that tell the operator what to do."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from headrace.base.errors import ConfigurationError, HeadraceError, SetupError, Unavailable

retry_after_s = 1.0


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
    """Our error for a driver's, by SQLite's primary result code."""
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
