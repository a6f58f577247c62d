"""Jobs that are asked so many requests at a time, and the class that they wait in."""

import msgspec
import pytest

from headrace.sim.fleet.event_loop import EventLoop
from headrace.sim.fleet.machinery import compiled
from headrace.sim.fleet.request import Outcome, SimRequest
from headrace.sim.fleet.scenario import Scenario, load
from headrace.sim.fleet.simulation import Simulation
from headrace.sim.fleet.traffic import begin_traffic, follow_up
from headrace.spec.priority import Priority

job_requests = 3000
at_once = 64


def crowded(policy: str) -> Scenario:
    """Two replicas, some chat, and a job that could fill them many times over."""
    scenario = load("batch")
    job, chat = scenario.traffic
    return msgspec.structs.replace(
        scenario,
        policy=policy,
        duration_s=60.0,
        fleet=msgspec.structs.replace(scenario.fleet, replicas=2),
        traffic=[
            msgspec.structs.replace(job, at_once=1000),
            msgspec.structs.replace(chat, rate_per_s=5.0),
        ],
    )


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.REFUSED])
def test_a_job_has_so_many_requests_out_at_a_time_until_all_were_asked(outcome: Outcome) -> None:
    scenario, loop = load("batch"), EventLoop()
    scenario = msgspec.structs.replace(scenario, traffic=scenario.traffic[:1])
    out: set[int] = set()
    most, asked = 0, 0

    def end(request: SimRequest) -> None:
        out.remove(request.id)
        request.outcome, request.end_s = outcome, loop.now_s
        follow_up(request)

    def arrive(request: SimRequest) -> None:
        nonlocal most, asked
        assert request.priority is Priority.BATCH
        assert request.arrival_s == loop.now_s
        out.add(request.id)
        most, asked = max(most, len(out)), asked + 1
        loop.after(0.1 + request.output_tokens / 1000, end, request)

    begin_traffic(scenario, 1, loop, arrive, compiled.new_shapes)
    loop.run()
    assert (most, asked, len(out)) == (at_once, job_requests, 0)


def test_a_job_asks_the_same_requests_under_every_policy() -> None:
    scenario = load("batch")
    scenario = msgspec.structs.replace(scenario, traffic=scenario.traffic[:1])
    tokens = set()
    for policy in ("headrace", "random"):
        simulation = Simulation(msgspec.structs.replace(scenario, policy=policy), 1)
        assert simulation.run().finished == job_requests
        tokens.add((simulation.recorder.prompt_tokens, simulation.recorder.output_tokens))
    assert len(tokens) == 1


def test_chat_does_not_wait_behind_a_job_of_the_class_batch() -> None:
    ours, none = (Simulation(crowded(policy), 1).run() for policy in ("headrace", "least-work"))
    assert ours.refused == none.refused == 0
    assert ours.finished == none.finished
    assert ours.waited > 0
    assert ours.objective_share > none.objective_share
    assert ours.ttft_s.p90 < none.ttft_s.p90 / 2


def test_at_once_is_refused_where_it_means_nothing() -> None:
    job = load("batch").traffic[0]
    for change in ({"turns": 3}, {"children": 2}, {"arrivals": "poisson"}):
        with pytest.raises(ValueError, match="at_once"):
            msgspec.structs.replace(job, **change)


def test_limits_cost_bursts_nothing_worth_speaking_of() -> None:
    """Every burst once cut the limits, and p90 was 7% above that of the same choice without any."""
    ours, none = (
        Simulation(msgspec.structs.replace(load("azure-2024-chat"), policy=policy), 1).run()
        for policy in ("headrace", "least-work")
    )
    assert ours.ttft_s.p90 <= 1.02 * none.ttft_s.p90
