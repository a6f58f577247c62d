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
from headrace.spec.deployments import Replica, ReplicaState
from headrace.storage import Database, open_sqlite


class TellingProbe(EngineProbe):
    """Says what each replica has counted; what is not named does not answer."""

    def __init__(self, client: HttpClient, loads: dict[str, EngineLoad]) -> None:
        super().__init__(client, ManualClock(), bytes(range(32)))
        self.loads = loads

    async def load(self, adapter: EngineAdapter, replica: Replica) -> EngineLoad:
        return self.loads.get(replica.id, EngineLoad())


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_sqlite(tmp_path / "headrace.db")) as opened:
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
