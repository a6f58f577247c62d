import gc
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import InvalidRequest, NotFound
from headrace.router.lease import Lease
from headrace.sim.fleet.attempt import Attempt
from headrace.sim.fleet.books import Books
from headrace.sim.fleet.gateway import SimGateway
from headrace.sim.fleet.invariants import InvariantBroken
from headrace.sim.fleet.policies import headrace, policies
from headrace.sim.fleet.report import Report
from headrace.sim.fleet.request import Outcome
from headrace.sim.fleet.scenario import Scenario, load, names, scenario_dir
from headrace.sim.fleet.simulation import Simulation

every_event = 1


def short(name: str, *, seconds: float, **changes: object) -> Scenario:
    return msgspec.structs.replace(load(name), duration_s=seconds, **changes)


def run(scenario: Scenario, seed: int = 1, *, check_interval_events: int = 1000) -> Report:
    return Simulation(scenario, seed).run(check_interval_events=check_interval_events)


@pytest.mark.parametrize("name", sorted(set(names()) - {"fleet"}))
def test_every_shipped_scenario_runs_and_ends_every_request(name: str) -> None:
    scenario = short(name, seconds=15.0)
    report = run(scenario)
    assert report.requests > 0
    assert report.finished + report.failed + report.refused == report.requests
    assert report.finished > report.requests / 2


@pytest.mark.parametrize("policy", [headrace, *policies])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_ones(policy: str) -> None:
    scenario = short("faults", seconds=12.0, policy=policy)
    first, again, other = (msgspec.json.encode(run(scenario, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", ["faults", "faults-network", "agents", "batch"])
def test_a_run_leaves_no_cycles_of_garbage(name: str) -> None:
    """Nobody looks for them while it lasts, so that they would fill the memory."""
    simulation = Simulation(short(name, seconds=20.0), 1)
    gc.collect()
    gc.disable()
    try:
        simulation.run()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_policies_meet_the_same_requests() -> None:
    counts = {
        run(short("chat", seconds=10.0, policy=policy)).requests
        for policy in (headrace, "random", "least-work")
    }
    assert len(counts) == 1


@pytest.mark.parametrize("engine", ["exact", "aggregate"])
@pytest.mark.parametrize("policy", [headrace, "least-harm"])
def test_invariants_hold_at_every_event_while_everything_breaks(engine: str, policy: str) -> None:
    scenario = load("faults")
    fleet = msgspec.structs.replace(scenario.fleet, engine=engine)
    scenario = msgspec.structs.replace(scenario, fleet=fleet, policy=policy)
    report = run(scenario, 7, check_interval_events=every_event)
    assert report.retries > 0
    assert report.failed > 0  # streams that were cut after their first token
    assert report.failed < report.requests / 20
    assert 0 < report.spent_usd <= 5 * 0.05


def test_both_engine_models_tell_the_same_of_a_fleet() -> None:
    calls = load("faults").traffic[:1]  # the other stream's requests depend on answers' times
    scenario = short("faults", seconds=30.0, faults=[], money=None, traffic=calls)
    exact = msgspec.structs.replace(scenario.fleet, engine="exact")
    reports = [
        run(msgspec.structs.replace(scenario, fleet=fleet, policy="least-requests"))
        for fleet in (scenario.fleet, exact)
    ]
    aggregate, exactly = reports
    assert aggregate.ttft_s.mean == pytest.approx(exactly.ttft_s.mean, rel=0.10)
    assert aggregate.e2e_s.mean == pytest.approx(exactly.e2e_s.mean, rel=0.03)
    assert aggregate.output_tokens_per_s == pytest.approx(exactly.output_tokens_per_s, rel=0.03)


def test_a_request_preempted_after_its_last_token_ends() -> None:
    """The seed that found it: the engine's clock stood still."""
    report = run(msgspec.structs.replace(load("agents"), policy="least-work"), 3)
    assert report.finished == report.requests


def test_a_leaked_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug on purpose: leases of failed attempts are not given back."""
    release = Lease.release

    def leaky(lease: Lease) -> None:
        if lease.endpoint.breaker.state != "open":
            release(lease)

    monkeypatch.setattr(Lease, "release", leaky)
    with pytest.raises(InvariantBroken, match="leases"):
        run(load("faults"), check_interval_events=every_event)


def test_a_request_that_is_ended_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug on purpose: a broken stream is reported and then retried all the same."""
    retry_or_end = SimGateway._retry_or_end

    def impatient(gateway: SimGateway, attempt: Attempt) -> None:
        gateway._finish(attempt.request, attempt, Outcome.FAILED)
        retry_or_end(gateway, attempt)

    monkeypatch.setattr(SimGateway, "_retry_or_end", impatient)
    scenario = msgspec.structs.replace(load("faults"), money=None)
    with pytest.raises(InvariantBroken, match="ended twice"):
        run(scenario, check_interval_events=every_event)


def test_a_dead_replica_that_is_not_ejected_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug on purpose: failures do not eject."""
    monkeypatch.setattr(Lease, "fail", lambda lease, now_s: lease.succeed())
    with pytest.raises(InvariantBroken, match="within an ejection"):
        run(load("faults"), check_interval_events=every_event)


def test_a_settlement_that_is_posted_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug on purpose: the ledger does not look at the request's id."""
    monkeypatch.setattr(Books, "post", lambda books, shipped: books._charge(shipped[0]))
    with pytest.raises(InvariantBroken, match="settled twice"):
        run(load("faults"), check_interval_events=every_event)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("replicas = 8", "replicas = 0"),
        ("step_rows = 2048", "step_rows = 0"),
        ("sequences_max = 256", "sequences_max = 0"),
        ("kv_tokens = 400000", "kv_tokens = 0"),
        ("fixed_s = 0.0005", "fixed_s = -1.0"),
    ],
)
def test_a_number_with_which_nothing_would_ever_end_is_refused(
    tmp_path: Path, line: str, wrong: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((scenario_dir / "chat.toml").read_text().replace(line, wrong))
    with pytest.raises(InvalidRequest, match=wrong.split(" ", maxsplit=1)[0]):
        load(str(path))


def test_an_unknown_scenario_names_those_there_are() -> None:
    with pytest.raises(NotFound, match="shared-150"):
        load("nothing")


def test_an_unknown_field_of_a_scenario_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('title = "x"\nduration_s = 1.0\nspeed = 3\n')
    with pytest.raises(InvalidRequest, match="speed"):
        load(str(path))
