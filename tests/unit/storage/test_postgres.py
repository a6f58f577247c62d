"""PostgreSQL's own matters: addresses, outages, consistent reads, writers that take turns."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError, SetupError, Unavailable
from headrace.sim.postgres_server import PostgresServer
from headrace.spec.settlements import Settlement
from headrace.storage import open_database, open_postgres


@pytest.mark.parametrize("url", ["", "mysql://a@b/c", "nonsense", "postgresql+asyncpg://a@b/c"])
def test_an_address_of_something_else_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--database-url must look like"):
        open_postgres(url)


def test_a_server_that_is_not_there_is_unavailable_and_the_password_stays_secret() -> None:
    with pytest.raises(Unavailable, match="does not answer") as caught:
        open_postgres("postgresql://ada:canary@127.0.0.1:1/none")
    assert "canary" not in str(caught.value)


def test_a_missing_database_is_named(postgres_server: PostgresServer) -> None:
    with pytest.raises(ConfigurationError, match='"nowhere" does not exist'):
        open_postgres(postgres_server.url_of("nowhere"))


def test_a_newer_schema_is_refused(new_postgres_url: Callable[[], str]) -> None:
    url = new_postgres_url()
    with closing(open_postgres(url)) as database, database._sessions.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigurationError, match="newer headrace"):
        open_postgres(url)


def test_an_address_chooses_postgresql_and_none_the_file(
    tmp_path: Path, new_postgres_url: Callable[[], str]
) -> None:
    for url, dialect in ((new_postgres_url(), "postgresql"), (None, "sqlite")):
        with closing(open_database(tmp_path / "headrace.db", url)) as database:
            assert database._sessions.engine.dialect.name == dialect


def test_a_read_sees_one_moment(
    new_postgres_url: Callable[[], str], settlement: Callable[..., Settlement]
) -> None:
    url = new_postgres_url()
    with closing(open_postgres(url)) as first, closing(open_postgres(url)) as second:
        with first._sessions.read() as connection:
            count = "SELECT count(*) FROM settlements"
            assert connection.exec_driver_sql(count).scalar_one() == 0
            second.ledger.post([settlement("r1")])
            assert connection.exec_driver_sql(count).scalar_one() == 0
        assert first.ledger.settlement_count() == 1


def test_processes_that_post_the_same_batches_book_each_once(
    new_postgres_url: Callable[[], str], settlement: Callable[..., Settlement]
) -> None:
    url = new_postgres_url()
    batches = [[settlement(f"r{number % 60}") for number in range(n, n + 20)] for n in range(60)]
    fresh: list[int] = []

    def post(turn: int) -> None:
        with closing(open_postgres(url)) as database:
            for batch in batches[:: 1 if turn % 2 else -1]:
                fresh.append(database.ledger.post(batch))

    threads = [threading.Thread(target=post, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with closing(open_postgres(url)) as database:
        assert sum(fresh) == database.ledger.settlement_count() == 60
        assert database.ledger.check() == []


def test_a_killed_server_loses_no_commit_and_is_used_again_when_it_is_back(
    open_directory: Path, settlement: Callable[..., Settlement]
) -> None:
    if reason := PostgresServer.missing():
        pytest.skip(reason)
    server = PostgresServer(open_directory / "killed")
    server.create()
    server.start()
    try:
        with closing(open_postgres(server.url)) as database:
            database.ledger.post([settlement("r1")])
            server.kill()
            with pytest.raises(Unavailable):
                database.ledger.post([settlement("r2")])
            server.start()
            assert database.ledger.post([settlement("r1"), settlement("r2")]) == 1
            assert database.ledger.check() == []
    finally:
        server.stop()


def test_what_the_server_refuses_is_no_outage(new_postgres_url: Callable[[], str]) -> None:
    with (
        closing(open_postgres(new_postgres_url())) as database,
        pytest.raises(SetupError, match="append-only"),
        database._sessions.write() as connection,
    ):
        connection.exec_driver_sql("TRUNCATE settlements, postings, entries CASCADE")
