"""A fresh database, and settlements to book in it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection

from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource
from headrace.storage import Database, open_postgres


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Whatever a test asks of the database must hold for both."""
    if request.param == "sqlite":
        opened = open_sqlite_copy(tmp_path / "headrace.db", ManualClock())
    else:
        make_url = request.getfixturevalue("new_postgres_url")
        opened = open_postgres(make_url(), ManualClock())
    yield opened
    opened.close()


@pytest.fixture
def tampering() -> Callable[[Database], AbstractContextManager[Connection]]:
    """A connection on which nothing protects the rows, as for somebody with the disk."""

    @contextmanager
    def open_(database: Database) -> Iterator[Connection]:
        engine = database.ledger._sessions.engine
        with engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET session_replication_role = replica")
            else:
                connection.exec_driver_sql("COMMIT")
                connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
                triggers = connection.exec_driver_sql(
                    "SELECT name FROM sqlite_master WHERE type = 'trigger'"
                ).scalars()
                for name in triggers.all():
                    connection.exec_driver_sql(f"DROP TRIGGER {name}")
                connection.exec_driver_sql("BEGIN")
            yield connection
            connection.exec_driver_sql("COMMIT")

    return open_


@pytest.fixture
def settlement() -> Callable[..., Settlement]:
    template = Settlement(
        request_id="",
        tenant_id="ten_a",
        project_id="prj_a",
        key_id="key_a",
        model="small",
        usage=TokenUsage(10, 4, 6),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id="prb_a",
        charge=Charge(input_nanousd=60, cached_input_nanousd=4, output_nanousd=36),
        settle_time=1_800_000_000.0,
    )

    def make(request_id: str, **changes: object) -> Settlement:
        return msgspec.structs.replace(template, request_id=request_id, **changes)

    return make
