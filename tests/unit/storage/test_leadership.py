"""One control plane leads, and another one as soon as it does not."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from headrace.sim.postgres_server import PostgresServer
from headrace.storage import open_postgres, open_sqlite
from headrace.storage.leadership import Leadership


@pytest.fixture
def candidates(new_postgres_url: Callable[[], str]) -> Iterator[tuple[Leadership, Leadership]]:
    url = new_postgres_url()
    with ExitStack() as stack:
        first, second = (stack.enter_context(closing(open_postgres(url))) for _ in range(2))
        pair = first.leadership(), second.leadership()
        for candidate in pair:
            stack.callback(candidate.release)
        yield pair


def test_one_leads_at_a_time(candidates: tuple[Leadership, Leadership]) -> None:
    first, second = candidates
    assert first.acquire()
    assert first.acquire()
    assert first.renew()
    assert not second.acquire()
    assert not second.renew()
    assert not second.lost()


def test_the_next_leader_has_a_higher_term(candidates: tuple[Leadership, Leadership]) -> None:
    first, second = candidates
    assert first.acquire()
    first.release()
    assert first.lost()
    assert second.acquire()
    assert second.term > first.term > 0
    assert not first.acquire()


def test_a_leader_whose_server_died_stops_leading(open_directory: Path) -> None:
    if reason := PostgresServer.missing():
        pytest.skip(reason)
    server = PostgresServer(open_directory / "led")
    server.create()
    server.start()
    try:
        with closing(open_postgres(server.url)) as database:
            leader = database.leadership()
            assert leader.acquire()
            server.kill()
            assert not leader.renew()
            assert leader.lost()
            assert not leader.acquire()
            server.start()
            assert leader.acquire()
            assert not leader.lost()
            leader.release()
    finally:
        server.stop()


def test_the_only_control_plane_of_a_file_leads(tmp_path: Path) -> None:
    with closing(open_sqlite(tmp_path / "headrace.db")) as database:
        leader = database.leadership()
        assert not leader.renew()
        assert leader.acquire()
        assert leader.renew()
        leader.release()
        assert not leader.renew()


leads_until_killed = """
import sys
from headrace.storage import open_postgres

print(open_postgres(sys.argv[1]).leadership().acquire(), flush=True)
sys.stdin.readline()
"""


def test_a_leader_that_was_killed_is_followed_by_the_other(
    new_postgres_url: Callable[[], str],
) -> None:
    url = new_postgres_url()
    with closing(open_postgres(url)) as database:
        other = database.leadership()
        with subprocess.Popen(
            [sys.executable, "-c", leads_until_killed, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as leader:
            assert leader.stdout is not None
            assert leader.stdout.readline().strip() == "True"
            assert not other.acquire()
            leader.kill()
        while not other.acquire():  # the server frees the lock once it sees the closed connection
            pass
        assert other.term == 2
        other.release()
