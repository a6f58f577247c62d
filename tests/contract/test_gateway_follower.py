"""The gateway's snapshot follows a real PostgreSQL by what it is told, not by looking."""

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress

import pytest
from msgspec.structs import replace

from headrace.base.clock import SystemClock
from headrace.gateway import follower as follower_module
from headrace.gateway.follower import SnapshotFollower
from headrace.router.endpoint_set import EndpointSet
from headrace.sim.gateway_site import fill_store, make_id, pepper
from headrace.spec.tenancy import ApiKey, KeyState
from headrace.storage import Database, open_postgres

never_s = 3600.0


def set_state(database: Database, state: KeyState) -> None:
    key = database.store.get(ApiKey, make_id("key", 1))
    database.store.update(replace(key, state=state))


async def until(happened: Callable[[], bool]) -> None:
    while True:
        if happened():
            return
        await asyncio.sleep(0.01)


async def test_a_revoked_key_is_known_without_waiting_for_the_next_look(
    new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "poll_interval_s", never_s)
    url = new_postgres_url()
    with closing(open_postgres(url)) as operators, closing(open_postgres(url)) as gateways:
        fill_store(operators, [], None)
        follower = SnapshotFollower(
            gateways.store, EndpointSet(), SystemClock(), pepper, gateways.changes()
        )
        task = asyncio.create_task(follower.follow())
        await until(lambda: bool(follower.snapshot.principals))  # the first wait returns at once
        await asyncio.to_thread(set_state, operators, KeyState.REVOKED)
        key_id = make_id("key", 1)
        await until(lambda: follower.snapshot.principals[key_id].key.state is KeyState.REVOKED)
        task.cancel()
        await asyncio.to_thread(set_state, operators, KeyState.ACTIVE)  # ends its wait
        with suppress(asyncio.CancelledError):
            await task
