"""Device-hours add up look by look, whoever shares a device with whom."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.control.device_meter import DeviceMeter
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.nodes import Inventory, Node, NodeDevice
from headrace.spec.resources import ReplicaResources
from headrace.storage import Database
from headrace.storage.engine_samples import EngineSample

day = "2027-01-15"  # the clock's


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    with closing(open_sqlite_copy(tmp_path / "headrace.db", clock)) as opened:
        yield opened


def add_replica(database: Database, name: str, *, launched: bool = True, **fields: object) -> None:
    database.store.create(
        Replica(
            id=f"rep_{name}",
            name=name,
            parent_id="dep_1",
            create_time=0.0,
            state=ReplicaState.ACTIVE,
            model_name="small",
            launch_id="launch" if launched else "",
            **fields,  # type: ignore[arg-type] # of any type
        )
    )


def held(database: Database) -> dict[tuple[str, str], tuple[float, float]]:
    return {
        (use.replica_id, use.device_type): (use.held_s, use.busy_s)
        for use in database.device_uses.read(day, day)
    }


def test_own_devices_count_whole_and_shared_ones_in_parts(
    database: Database, clock: ManualClock
) -> None:
    devices = (
        NodeDevice(id="gpu0", device_type="H100", memory_bytes=1),
        NodeDevice(id="gpu1", device_type="H100", memory_bytes=1),
        NodeDevice(id="cpu0", device_type="CPU", memory_bytes=1, is_shared=True),
    )
    database.store.create(
        Node(id="nod_1", name="one", create_time=0.0, inventory=Inventory(devices=devices))
    )
    add_replica(database, "big", node_id="nod_1", device_ids=("gpu0", "gpu1"))
    for name in ("a", "b"):
        add_replica(database, name, node_id="nod_1", device_ids=("cpu0",))
    add_replica(database, "waits", launched=False)
    meter = DeviceMeter(database, clock)
    meter.look()
    assert held(database) == {}
    for _ in range(2):
        clock.advance(60.0)
        sample = EngineSample(
            replica_id="rep_a",
            sample_time=clock.wall_s(),
            generation="1",
            prompt_tokens=1,
            completion_tokens=1,
            running_requests=1,
        )
        database.engine_samples.add([sample])
        meter.look()
    assert held(database) == {
        ("rep_big", "H100"): (240.0, 0.0),
        ("rep_a", "CPU"): (60.0, 60.0),
        ("rep_b", "CPU"): (60.0, 0.0),
    }


def test_without_a_node_of_ours_the_deployment_says_what_is_held(
    database: Database, clock: ManualClock
) -> None:
    database.store.create(
        Deployment(
            id="dep_1",
            name="d",
            create_time=0.0,
            model_version_id="mdv_1",
            resources=ReplicaResources(devices=4, device_types=("B200",)),
        )
    )
    add_replica(database, "a")
    meter = DeviceMeter(database, clock)
    meter.look()
    clock.advance(30.0)
    meter.look()
    assert held(database) == {("rep_a", "B200"): (120.0, 0.0)}


def test_a_pause_is_not_made_up(database: Database, clock: ManualClock) -> None:
    add_replica(database, "a")
    meter = DeviceMeter(database, clock)
    meter.look()
    clock.advance(3600.0)
    meter.look()
    assert held(database) == {}
    clock.advance(60.0)
    meter.look()
    assert held(database) == {("rep_a", "CPU"): (60.0, 0.0)}
