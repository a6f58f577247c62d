"""What replicas were found to bear outlives the control plane."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from headrace.control.autoscale import Outlook
from headrace.control.scale_memory import ScaleMemory
from headrace.control.scaler import Scaler
from headrace.control.traffic import TrafficBook
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.autoscaling import Autoscaling
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.models import Model
from headrace.spec.signals import (
    GatewaySignals,
    GenerationSignals,
    ModelSignals,
    first_token_bounds_s,
)
from headrace.storage import Database

deployment = Deployment(
    id="dep_1",
    name="small",
    parent_id="mod_1",
    create_time=0,
    model_version_id="ver_1",
    generation=3,
    replicas=2,
    autoscaling=Autoscaling(min=1, max=8),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    with closing(open_sqlite_copy(tmp_path / "headrace.db", clock)) as opened:
        yield opened


def test_a_load_and_what_was_too_much_are_recalled_and_grow_older_meanwhile(
    database: Database, clock: ManualClock
) -> None:
    clock.advance(5000.0)
    memory = ScaleMemory(database.learnt_loads, clock)
    assert memory.recall(deployment) == Outlook()
    memory.keep(deployment, Outlook())
    assert database.learnt_loads.find("dep_1") is None, "nothing was learnt"
    cut_s = clock.monotonic_s() - 100.0
    learnt = Outlook(bearable_tokens_per_s=900.0, too_much_tokens_per_s=1000.0, cut_s=cut_s)
    memory.keep(deployment, learnt)
    clock.advance(50.0)
    recalled = ScaleMemory(database.learnt_loads, clock).recall(deployment)
    assert (recalled.bearable_tokens_per_s, recalled.too_much_tokens_per_s) == (900.0, 1000.0)
    assert clock.monotonic_s() - recalled.cut_s == pytest.approx(150.0)


def test_another_generation_begins_anew_and_takes_the_place(
    database: Database, clock: ManualClock
) -> None:
    memory = ScaleMemory(database.learnt_loads, clock)
    memory.keep(deployment, Outlook(bearable_tokens_per_s=900.0))
    newer = msgspec.structs.replace(deployment, generation=4)
    assert ScaleMemory(database.learnt_loads, clock).recall(newer) == Outlook()
    memory.keep(newer, Outlook(bearable_tokens_per_s=901.0))
    kept = database.learnt_loads.find("dep_1")
    assert kept is not None
    assert (kept.generation, kept.tokens_per_s) == (4, 901.0)


def test_small_changes_are_not_written_and_what_is_gone_is_forgotten(
    database: Database, clock: ManualClock
) -> None:
    memory = ScaleMemory(database.learnt_loads, clock)
    other = msgspec.structs.replace(deployment, id="dep_2")
    for tokens_per_s in (900.0, 920.0, 930.0):
        memory.keep(deployment, Outlook(bearable_tokens_per_s=tokens_per_s))
        memory.keep(other, Outlook(bearable_tokens_per_s=100.0))
    kept = database.learnt_loads.find("dep_1")
    assert kept is not None
    assert kept.tokens_per_s == 930.0, "3.3% more than what was kept, where 2.2% was not"
    memory.keep_only({"dep_1"})
    assert database.learnt_loads.find("dep_1") == kept
    assert database.learnt_loads.find("dep_2") is None


class Traffic:
    """A deployment with two replicas under steady work, whose first tokens come early."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.database, self.clock = database, clock
        self.requests = 0
        self.restart()

    def restart(self) -> None:
        """Another control plane, which knows what the store knows."""
        self.book = TrafficBook()
        self.scaler = Scaler(self.database.store, self.database.learnt_loads, self.book, self.clock)

    def look(self, requests: int) -> float | None:
        """What a replica is believed to be able to do, after so many requests."""
        self.clock.advance(2.0)
        self.requests += requests
        counts = (self.requests, *[0] * len(first_token_bounds_s))
        self.book.hear(
            GatewaySignals(
                gateway_id="a",
                generations=(
                    GenerationSignals(
                        deployment_id="dep_1",
                        generation=3,
                        in_flight_requests=20,
                        first_tokens=counts,
                    ),
                ),
                models=(ModelSignals(model="small", arrived_tokens_total=100 * self.requests),),
            ),
            self.clock.monotonic_s(),
        )
        self.scaler.look()
        last = self.scaler.looks.get("dep_1")
        return None if last is None else last.proposal.capacity_tokens_per_s


def test_a_control_plane_that_restarts_believes_what_the_one_before_found(
    database: Database, clock: ManualClock
) -> None:
    store = database.store
    store.create(Model(id="mod_1", name="small", create_time=0))
    store.create(deployment)
    for index in range(2):
        store.create(
            Replica(
                id=f"rep_{index}",
                name=f"small-{index}",
                parent_id="dep_1",
                create_time=0,
                state=ReplicaState.ACTIVE,
            )
        )
    traffic = Traffic(database, clock)
    learnt = [traffic.look(40) for _ in range(30)]
    assert learnt[1] is None, "forty first tokens prove nothing"
    assert learnt[-1] is not None
    traffic.restart()
    assert traffic.look(0) is None, "the first look has nothing to compare with"
    assert traffic.look(0) == pytest.approx(learnt[-1], rel=0.03)
