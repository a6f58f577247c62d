"""Each replica that serves and counts is sampled, by process."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.adapters.protocol import EngineAdapter, EngineLoad
from headrace.adapters.registry import find_adapter
from headrace.control.counter_sampler import CounterSampler
from headrace.control.probe import EngineProbe
from headrace.http.client import HttpClient
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Replica, ReplicaState
from headrace.storage import Database
from headrace.storage.engine_samples import EngineSample


class TellingProbe(EngineProbe):
    """Says what each replica has counted; what is not named does not answer."""

    def __init__(self, client: HttpClient, loads: dict[str, EngineLoad]) -> None:
        super().__init__(client, ManualClock(), bytes(range(32)))
        self.loads = loads

    async def load(self, adapter: EngineAdapter, replica: Replica) -> EngineLoad:
        return self.loads.get(replica.id, EngineLoad())


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_sqlite_copy(tmp_path / "headrace.db")) as opened:
        for name, state in (("a", "ACTIVE"), ("b", "ACTIVE"), ("c", "DRAINING")):
            opened.store.create(
                Replica(
                    id=f"rep_{name}",
                    name=name,
                    create_time=0.0,
                    state=ReplicaState[state],
                    address="http://127.0.0.1:1",
                    launch_id="launch",
                    launch_time=7.0,
                )
            )
        yield opened


async def test_replicas_that_serve_and_count_are_sampled(database: Database) -> None:
    clock = ManualClock()
    counted = EngineLoad(running_requests=2, prompt_tokens_total=30, completion_tokens_total=4)
    client = HttpClient()
    sampler = CounterSampler(
        store=database.store,
        samples=database.engine_samples,
        probe=TellingProbe(client, {"rep_a": counted, "rep_c": counted}),
        adapters={"headrace": find_adapter("headrace")},
        clock=clock,
    )
    assert await sampler.sample_once() == 1
    await client.close()
    ((replica_id, (sample,)),) = database.engine_samples.read(0.0, 1e12).items()
    assert (replica_id, sample.generation, sample.running_requests) == ("rep_a", "launch:7.0", 2)
    assert (sample.prompt_tokens, sample.completion_tokens) == (30, 4)


async def test_samples_are_kept_as_long_as_is_set_and_a_day_of_old_ones_goes_at_a_time(
    database: Database,
) -> None:
    clock = ManualClock()
    now_s = clock.wall_s()
    ages_days = (9.0, 8.5, 6.5, 5.1, 4.9, 0.0)
    database.engine_samples.add(
        [
            EngineSample(
                replica_id="rep_old",
                sample_time=now_s - age_days * 86_400.0,
                generation="launch:1",
                prompt_tokens=1,
                completion_tokens=1,
            )
            for age_days in ages_days
        ]
    )
    client = HttpClient()
    sampler = CounterSampler(
        store=database.store,
        samples=database.engine_samples,
        probe=TellingProbe(client, {}),
        adapters={},
        clock=clock,
        kept_days=5,
    )
    left = []
    for _ in range(4):
        await sampler.sample_once()
        left.append(len(database.engine_samples.read(0.0, 1e12)["rep_old"]))
    await client.close()
    assert left == [4, 3, 2, 2]
