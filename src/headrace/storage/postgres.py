"""PostgreSQL for a platform on several machines: the same tables, one writer at a time.

Writers queue on one advisory lock, taken when a transaction begins. So a batch of settlements that
looks for what is booked and books the rest cannot race another, the audit chain has one tail, and
no two transactions ever wait for each other's rows. Readers never wait: they see one snapshot.
"""

from collections.abc import Mapping

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import ConfigurationError
from headrace.storage.database import Database
from headrace.storage.schema_version import is_current, migrate
from headrace.storage.sessions import Sessions

writer_lock = 0x6865_6164_0001  # of every transaction that writes
limits_lock = 0x6865_6164_0003  # of exchanges of leases and claims, which write no other table
answers_lock = 0x6865_6164_0004  # of large answers, which are kept before their claim says so
connections_kept = 8
connections_max = 32  # threads that use the database at once, as with SQLite
pool_timeout_s = 10.0
connect_timeout_s = 5  # libpq takes whole seconds
silent_peer_timeout_ms = 10_000  # a host that went away without a word
server_settings: Mapping[str, int] = {
    "statement_timeout": 120_000,  # ms; the longest is `ledger check`
    "lock_timeout": 10_000,
    "idle_in_transaction_session_timeout": 60_000,  # a writer that hangs must not stop the others
}


def open_postgres(url: str, clock: Clock | None = None) -> Database:
    """Open `postgresql://user:password@host/name` and bring it to this program's tables.

    ConfigurationError if the address, the user or the database is wrong; Unavailable if the
    server is out of reach."""
    address = parse_address(url)
    engine = make_engine(address)
    sessions = Sessions(
        engine,
        address.set(drivername="postgresql").render_as_string(hide_password=True),
        writer_options={"isolation_level": "READ COMMITTED"},
    )
    try:
        with sessions.read() as connection:
            current = is_current(connection, sessions.location)
        if not current:
            migrate(sessions)
    except BaseException:
        engine.dispose()
        raise
    limit_sessions, answer_sessions = (
        Sessions(
            engine,
            sessions.location,
            writer_options={"isolation_level": "READ COMMITTED", "headrace_lock": lock},
        )
        for lock in (limits_lock, answers_lock)
    )
    return Database(sessions, clock or SystemClock(), limit_sessions, answer_sessions)


def parse_address(url: str) -> URL:
    """The address with our driver in it; ConfigurationError if it is none of PostgreSQL."""
    try:
        address = make_url(url)
    except ArgumentError:
        address = None
    if address is None or address.drivername not in ("postgresql", "postgres"):
        raise ConfigurationError(
            "--database-url must look like postgresql://user:password@host:5432/name; without it "
            "the database is a file in the data directory"
        )
    return address.set(drivername="postgresql+psycopg")


def make_engine(address: URL) -> Engine:
    """An engine whose reads see one snapshot and whose writers take turns."""
    options = " ".join(f"-c {name}={value}" for name, value in server_settings.items())
    try:
        engine = create_engine(
            address,
            connect_args={
                "connect_timeout": connect_timeout_s,
                "tcp_user_timeout": silent_peer_timeout_ms,
                "application_name": "headrace",
                "options": options,
            },
            isolation_level="REPEATABLE READ",
            pool_size=connections_kept,
            max_overflow=connections_max - connections_kept,
            pool_timeout=pool_timeout_s,
            pool_pre_ping=True,  # after the server restarts, the first statement finds out
        )
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "PostgreSQL needs the package psycopg; pip install 'headrace[postgres]'"
        ) from error

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("headrace_writes", False):
            lock = options.get("headrace_lock", writer_lock)
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({lock})")

    return engine
