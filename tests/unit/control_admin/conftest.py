"""An admin API over a real store in a temporary directory, on a manual clock."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from headrace.control.admin import create_admin_app
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.storage import Database

token = "an-admin-token-of-30-characters"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    opened = open_sqlite_copy(tmp_path / "headrace.db", clock)
    yield opened
    opened.close()


@pytest.fixture
def admin_app(database: Database, clock: ManualClock) -> ASGIApp:
    closing = asyncio.Event()
    closing.set()  # so that streams end
    return create_admin_app(database, token, pepper=b"p" * 32, clock=clock, closing=closing)


@pytest.fixture
def stranger(admin_app: ASGIApp) -> TestClient:
    """A client without a credential."""
    return TestClient(admin_app, base_url="http://127.0.0.1:8081", raise_server_exceptions=False)


@pytest.fixture
def admin(admin_app: ASGIApp) -> TestClient:
    """A client that presents the admin token."""
    return TestClient(
        admin_app,
        base_url="http://127.0.0.1:8081/admin/v1",
        headers={"authorization": f"Bearer {token}"},
        raise_server_exceptions=False,
    )


@pytest.fixture
def admin_token() -> str:
    return token
