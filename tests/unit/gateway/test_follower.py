"""The follower takes what changed, also where the store did not: a key that is kept elsewhere."""

import asyncio
from pathlib import Path

import pytest

from headrace.base import secret_references
from headrace.gateway.follower import SnapshotFollower, key_look_interval_s
from headrace.router.endpoint_set import EndpointSet
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Deployment, Replica, ReplicaState, Upstream
from headrace.spec.models import Model, ModelVersion
from headrace.storage import Database

pepper = bytes(range(32))


@pytest.fixture
def key_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(secret_references, "secret_directories", (tmp_path,))
    path = tmp_path / "provider"
    path.write_text("old\n")
    return path


def renew(path: Path) -> None:
    path.write_text("new\n")


def filled(database: Database, key_path: Path) -> Database:
    upstream = Upstream(address="https://api.example.com/v1", key=f"file:{key_path}")
    database.store.create(Model(id="mod_1", name="m", create_time=0.0))
    database.store.create(
        ModelVersion(id="ver_1", name="v", parent_id="mod_1", source="api:m", create_time=0.0)
    )
    database.store.create(
        Deployment(
            id="dep_1", name="d", parent_id="mod_1", model_version_id="ver_1", create_time=0.0
        )
    )
    database.store.create(
        Replica(
            id="rep_1",
            name="d-0",
            parent_id="dep_1",
            state=ReplicaState.ACTIVE,
            engine="openai",
            address=upstream.address,
            upstream=upstream,
            create_time=0.0,
        )
    )
    return database


async def test_a_renewed_key_is_read_although_the_store_did_not_change(
    tmp_path: Path, key_path: Path
) -> None:
    clock = ManualClock()
    database = filled(open_sqlite_copy(tmp_path / "state.db"), key_path)
    follower = SnapshotFollower(database.store, EndpointSet(), clock, pepper)

    def keys() -> list[str]:
        return [spec.engine_key for spec in follower.snapshot.endpoints]

    await follower.load()
    assert keys() == ["old"]

    renew(key_path)
    await follower.load()
    assert keys() == ["old"]  # bounded: not at every look at the store
    clock.advance(key_look_interval_s)
    await follower.load()
    assert keys() == ["new"]

    await asyncio.to_thread(key_path.unlink)
    clock.advance(key_look_interval_s)
    await follower.load()
    assert keys() == [""]
    seen = follower.snapshot
    clock.advance(key_look_interval_s)
    await follower.load()
    assert follower.snapshot is seen  # nothing changed, nothing was read
    database.close()
