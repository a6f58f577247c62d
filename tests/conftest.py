"""Real servers for the tests that need them; each skips, saying why, where a program is missing."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
import redis

from headrace.sim.postgres_server import PostgresServer
from headrace.sim.redis_server import RedisServer
from headrace.storage import open_postgres

numbers = count(1)
# Test files that take long, the longest first.
longest = {
    f"test_{name}.py": place
    for place, name in enumerate(
        (
            "up_lifecycle", "gateways_chaos", "readme", "up_nodes", "up_rollouts", "platform",
            "up_usage", "up_failures", "guides", "gateway_joining", "serve_parameter_table",
            "serve_lifecycle", "launcher", "arm_kernels", "placement", "admin_api_document",
            "limits_machine", "ledger_store", "journal_kill", "scheduler_machine",
            "content_guard_attacks", "model_families", "site",
        )
    )
}  # fmt: skip
end_to_end, contract = (Path(__file__).with_name(name) for name in ("e2e", "contract"))


def pytest_configure() -> None:
    """A run in the background ignores Ctrl-C; what the tests start must not inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make unit` leaves tests/e2e out, and `make e2e` looks there and in tests/contract alone.

    What takes long comes first: begun last, it would leave the other cores idle at the end."""
    for item in items:
        is_marked = item.get_closest_marker("e2e") is not None
        if end_to_end in item.path.parents:
            is_run = is_marked
        else:
            is_run = not is_marked or contract in item.path.parents
        if not is_run:
            raise pytest.UsageError(
                f"{item.nodeid} is run by nothing: what is in tests/e2e is marked `e2e`, and what "
                "is marked so is there or in tests/contract"
            )
    items.sort(key=lambda item: longest.get(item.path.name, len(longest)))


def unavailable(reason: str) -> None:
    """Skip on a developer's machine; fail in CI, which has everything."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; CI tests against the real thing")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def open_directory() -> Iterator[Path]:
    """A directory that other users may enter; root's servers run as another one."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(open_directory: Path) -> Iterator[PostgresServer]:
    """One server of the whole run; do not stop it."""
    if reason := PostgresServer.missing():
        unavailable(reason)
    server = PostgresServer(open_directory / "postgres")
    server.create()
    server.start()
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE template_headrace")
        open_postgres(server.url_of("template_headrace")).close()
        yield server
    finally:
        server.stop()


@pytest.fixture
def new_postgres_url(postgres_server: PostgresServer) -> Callable[[], str]:
    """Makes databases with headrace's tables, empty ones."""

    def make() -> str:
        name = f"test_{next(numbers)}"
        with psycopg.connect(postgres_server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template_headrace")
        return postgres_server.url_of(name)

    return make


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> str:
    """A database without any table."""
    name = f"empty_{next(numbers)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.url_of(name)


@pytest.fixture(scope="session")
def shared_redis_server(open_directory: Path) -> Iterator[RedisServer]:
    """One server of the whole run."""
    if reason := RedisServer.missing():
        unavailable(reason)
    server = RedisServer(open_directory / "redis")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(shared_redis_server: RedisServer) -> RedisServer:
    """The same, empty; do not stop it."""
    with redis.Redis.from_url(shared_redis_server.url) as client:
        client.flushall()
    return shared_redis_server


@pytest.fixture
def own_redis_server(open_directory: Path) -> Iterator[RedisServer]:
    """One for this test alone, which may stop it."""
    if reason := RedisServer.missing():
        unavailable(reason)
    server = RedisServer(open_directory / f"own-redis-{next(numbers)}")
    server.start()
    yield server
    server.stop()
