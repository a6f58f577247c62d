"""What a control plane tells Prometheus, from its store and its samples."""

from pathlib import Path

from headrace.adapters.prometheus_text import read_samples
from headrace.control.metrics import ControlMetrics, compare_interval_s
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.storage import Database
from headrace.storage.engine_samples import EngineSample

names = (
    "headrace_control_leads",
    "headrace_control_short_deployments",
    "headrace_control_difference_tokens",
    "headrace_control_unexplained_tokens",
)


def sample(clock: ManualClock, tokens: int, running: int | None = 0) -> EngineSample:
    return EngineSample(
        replica_id="rep_1",
        sample_time=clock.wall_s(),
        generation="1",
        prompt_tokens=tokens,
        completion_tokens=0,
        running_requests=running,
    )


def deploy(database: Database) -> None:
    database.store.create(
        Deployment(
            id="dep_1",
            name="d",
            parent_id="mod_1",
            create_time=0.0,
            model_version_id="ver_1",
            replicas=2,
        )
    )
    database.store.create(
        Replica(
            id="rep_1",
            name="r",
            parent_id="dep_1",
            create_time=0.0,
            state=ReplicaState.ACTIVE,
            address="http://127.0.0.1:1",
        )
    )


def test_what_is_short_and_what_differs_is_told(tmp_path: Path) -> None:
    clock = ManualClock()
    database = open_sqlite_copy(tmp_path / "headrace.db", clock)
    deploy(database)
    metrics = ControlMetrics(database, clock, lambda: True)
    values = read_samples(metrics.text().decode(), names)
    assert list(values.values()) == [1, 1, 0, 0]
    for tokens in (10, 17):
        database.engine_samples.add([sample(clock, tokens)])
        clock.advance(60)
    values = read_samples(metrics.text().decode(), names)
    assert values["headrace_control_unexplained_tokens"] == 7
    database.close()


def test_a_difference_with_a_reason_is_not_unexplained(tmp_path: Path) -> None:
    clock = ManualClock()
    database = open_sqlite_copy(tmp_path / "headrace.db", clock)
    for tokens in (10, 17):
        database.engine_samples.add([sample(clock, tokens, running=1)])
        clock.advance(compare_interval_s)
    text = ControlMetrics(database, clock, lambda: False).text().decode()
    assert list(read_samples(text, names).values()) == [0, 0, 7, 0]
    database.close()
