"""The stream says when to look again, ends when the control plane drains, and is bounded."""

import asyncio

import pytest
from starlette.testclient import TestClient

from headrace.base.errors import RateLimited
from headrace.control.admin import create_admin_app, events
from headrace.sim.clock import ManualClock
from headrace.storage import Database


def client_of(database: Database, clock: ManualClock, closing: asyncio.Event) -> TestClient:
    app = create_admin_app(
        database, "an-admin-token-of-30-characters", pepper=b"p" * 32, clock=clock, closing=closing
    )
    return TestClient(
        app,
        base_url="http://127.0.0.1:8081/admin/v1",
        headers={"authorization": "Bearer an-admin-token-of-30-characters"},
    )


def test_it_begins_with_the_revision_and_ends_with_the_control_plane(
    database: Database, clock: ManualClock
) -> None:
    closing = asyncio.Event()
    closing.set()
    answer = client_of(database, clock, closing).get("/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text == f"event: change\ndata: {database.store.revision()}\n\n"
    assert events.streams.count == 0


def test_too_many_streams_are_refused(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events.streams, "count", events.streams_max)
    answer = client_of(database, clock, asyncio.Event()).get("/events")
    assert answer.status_code == RateLimited.http_status


def test_strangers_get_no_stream(stranger: TestClient) -> None:
    assert stranger.get("/admin/v1/events").status_code == 401
