"""Which database, and where gateways share limits: by the addresses that are given."""

from pathlib import Path

from headrace.base.clock import Clock
from headrace.storage.database import Database
from headrace.storage.lease_exchange import SharedLimits
from headrace.storage.postgres import open_postgres
from headrace.storage.redis_limits import RedisLimits
from headrace.storage.sqlite import open_sqlite


def open_database(path: Path, url: str | None = None, clock: Clock | None = None) -> Database:
    """Open PostgreSQL at `url`, or SQLite at `path` where there is no address."""
    return open_postgres(url, clock) if url else open_sqlite(path, clock)


def open_limits(database: Database, redis_url: str | None = None) -> SharedLimits | None:
    """Redis at `redis_url`, else the database that gateways share; None: there is one gateway.

    SetupError if Redis keeps nothing on its disk, Unavailable if it does not answer."""
    if redis_url is None:
        return database.limits if database.is_shared else None
    epoch, is_marked = database.limits.redis_epoch()
    limits = RedisLimits(redis_url, str(epoch))
    try:
        if not is_marked:
            limits.mark()
            database.limits.note_redis()
    except BaseException:
        limits.close()
        raise
    return limits


def recount_limits(database: Database, redis_url: str) -> float:
    """As `RedisLimits.recount`, for the Redis of this platform."""
    epoch, _ = database.limits.redis_epoch()
    limits = RedisLimits(redis_url, str(epoch))
    try:
        seconds = limits.recount()
        database.limits.note_redis()
    finally:
        limits.close()
    return seconds
