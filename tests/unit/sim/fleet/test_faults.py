"""What breaks besides replicas: the network, the clock, the disk; and seeds that nobody tried."""

import secrets

import msgspec
import pytest

from headrace.router.lease import Lease
from headrace.sim.fleet.event_loop import EventLoop
from headrace.sim.fleet.invariants import InvariantBroken
from headrace.sim.fleet.policies import headrace
from headrace.sim.fleet.replicas import Replicas
from headrace.sim.fleet.report import Report
from headrace.sim.fleet.scenario import Fault, load
from headrace.sim.fleet.simulation import Simulation


def run(
    *faults: Fault,
    seconds: float = 12.0,
    seed: int = 5,
    policy: str = headrace,
    duplicate_share: float = 0.0,
) -> Report:
    known = load("faults")
    network = msgspec.structs.replace(
        known.network, lost_share=0.0, duplicate_share=duplicate_share
    )
    scenario = msgspec.structs.replace(
        known,
        duration_s=seconds,
        policy=policy,
        faults=list(faults),
        traffic=known.traffic[:1],
        network=network,
    )
    return Simulation(scenario, seed).run(check_interval_events=1)


def test_a_seed_that_nobody_tried_breaks_nothing() -> None:
    seed = secrets.randbelow(1 << 32)
    simulation = Simulation(load("faults"), seed, name="faults")
    report = simulation.run(check_interval_events=200)  # a broken invariant names the seed
    assert report.finished + report.failed + report.refused == report.requests, f"seed {seed}"


def test_a_broken_invariant_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "release", lambda lease: None)
    with pytest.raises(InvariantBroken) as caught:
        Simulation(load("faults"), 77, name="faults").run(check_interval_events=1)
    assert caught.value.__notes__ == ["to see it again: headrace sim run faults --seed 77"]


def test_a_short_partition_delays_streams_and_loses_none() -> None:
    whole = run()
    cut = run(Fault(kind="partition", at_s=3.0, duration_s=4.0))
    assert cut.finished == cut.requests == whole.requests
    assert cut.retries > 0
    assert cut.ttft_s.p99 > whole.ttft_s.p99 + 1.0, "a connection that is tried for two seconds"


def test_a_partition_that_outlasts_the_stall_timeout_breaks_the_streams_in_it_only() -> None:
    cut = run(Fault(kind="partition", at_s=3.0, duration_s=30.0))
    assert 0 < cut.failed < cut.requests / 10
    assert cut.finished + cut.failed == cut.requests


def test_a_clock_that_is_set_back_changes_nothing() -> None:
    assert run(Fault(kind="clock-jump", at_s=4.0, jump_s=-7200.0)).spent_usd == run().spent_usd
    loop = EventLoop()
    before_s = loop.wall_s()
    loop.set_wall(-7200.0)
    assert loop.wall_s() == before_s - 7200.0


def test_a_journal_that_cannot_be_written_for_a_while_charges_late_and_exactly_once() -> None:
    stalled = run(Fault(kind="disk-stall", at_s=3.0, duration_s=20.0))
    assert stalled.requests == stalled.finished + stalled.refused
    assert 0 < stalled.spent_usd <= 5 * 0.05


def test_streams_that_break_when_an_ejection_has_just_run_out_do_not_put_its_probe_off() -> None:
    """The seed that found it: a partition ejected a replica, which died at the end of that."""
    report = run(
        Fault(kind="partition", at_s=5.0, duration_s=0.5, replicas=3),
        Fault(kind="crash", at_s=7.5332053022540215),
        Fault(kind="hang", at_s=7.911593871652199, replicas=2),
        seconds=14.0,
        seed=2,
        policy="least-harm",
        duplicate_share=0.02,
    )
    assert report.finished > 0.95 * report.requests


@pytest.mark.parametrize("name", ["faults-network", "faults-machine"])
@pytest.mark.parametrize("policy", [headrace, "prefix-affinity"])
def test_shipped_faults_break_no_invariant(name: str, policy: str) -> None:
    scenario = msgspec.structs.replace(load(name), policy=policy)
    report = Simulation(scenario, 2, name=name).run(check_interval_events=20)
    assert report.finished > 0.95 * report.requests
    assert report.finished + report.failed + report.refused == report.requests


def test_a_replica_that_nobody_starts_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug on purpose: the control plane takes a dead replica out and forgets it."""
    monkeypatch.setattr(Replicas, "_start", lambda replicas, replica: None)
    with pytest.raises(InvariantBroken, match="the faults are over, and replica-"):
        run(Fault(kind="crash", at_s=2.0), seconds=4.0)


def test_where_every_replica_was_cut_off_the_next_request_finds_one_that_is_back() -> None:
    cut = run(Fault(kind="partition", at_s=3.0, duration_s=0.5, replicas=3))
    assert cut.finished == cut.requests, "an ejected replica is better than none"
