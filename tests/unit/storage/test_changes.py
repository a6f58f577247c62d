"""Whoever waits for the store hears of each change, and of the end of an outage."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headrace.sim.clock import ManualClock
from headrace.sim.postgres_server import PostgresServer
from headrace.spec.tenancy import Tenant
from headrace.storage import Database, open_postgres
from headrace.storage.changes import PolledChanges, poll_interval_s

long_s = 20.0


def create(database: Database, name: str) -> None:
    database.store.create(Tenant(id=f"ten_{name}", name=name, create_time=0.0))


def test_a_change_ends_the_wait(database: Database) -> None:
    with closing(database.changes()) as changes:
        changes.wait(long_s)  # of the first, nobody knows what was missed
        before = database.store.revision()
        writer = threading.Thread(target=create, args=(database, "a"))
        writer.start()
        changes.wait(long_s)
        writer.join()
        assert database.store.revision() > before


def test_a_poll_waits_until_the_revision_differs_or_the_time_is_over() -> None:
    clock = ManualClock()
    revisions = iter([1, 1, 1, 2, 2, 2, 2, 2])
    changes = PolledChanges(lambda: next(revisions), clock.advance, clock.monotonic_s)
    begun_s = clock.monotonic_s()
    changes.wait(9.0)
    assert clock.monotonic_s() == begun_s
    changes.wait(9.0)
    assert clock.monotonic_s() - begun_s == pytest.approx(2 * poll_interval_s)
    changes.wait(0.5)
    assert clock.monotonic_s() - begun_s == pytest.approx(2 * poll_interval_s + 0.5)


def test_a_listener_whose_server_was_killed_looks_again_when_it_is_back(
    open_directory: Path,
) -> None:
    if reason := PostgresServer.missing():
        pytest.skip(reason)
    server = PostgresServer(open_directory / "listened")
    server.create()
    server.start()
    try:
        with (
            closing(open_postgres(server.url)) as database,
            closing(database.changes()) as changes,
        ):
            changes.wait(long_s)
            server.kill()
            changes.wait(long_s)  # ends with its connection
            changes.wait(0.0)  # polls, in vain
            server.start()
            create(database, "a")
            changes.wait(long_s)  # listens anew, and says so
            create(database, "b")
            changes.wait(long_s)
            assert len(database.store.list(Tenant)) == 2
    finally:
        server.stop()


def test_a_listener_gives_its_connection_back(new_postgres_url: Callable[[], str]) -> None:
    with closing(open_postgres(new_postgres_url())) as database:
        for _ in range(40):  # more than there are connections
            with closing(database.changes()) as changes:
                changes.wait(long_s)
