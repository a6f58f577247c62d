"""When a prompt is computed elsewhere, where, and what both endpoints then count."""

import dataclasses
import random

import pytest

from headrace.base.errors import Unavailable
from headrace.router.decision_log import DecisionLog
from headrace.router.endpoint import Endpoint, EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker
from headrace.router.split import Splitter

pools = [("ver_1", 1)]
long_work = Work(1000, 10, request_id="req_1")


class Fleet:
    """Replicas for prompts p0, p1, ... and one that answers, d."""

    def __init__(self, prefillers: int = 2, **changes: object) -> None:
        self.endpoints = EndpointSet()
        names = [*(f"p{number}" for number in range(prefillers)), "d"]
        self.endpoints.update([self.spec(name, **changes) for name in names])
        self.log = DecisionLog()
        self.picker = Picker(self.endpoints, random.Random(1), log=self.log)
        self.splitter = Splitter(self.endpoints, self.log)

    @staticmethod
    def spec(name: str, **changes: object) -> EndpointSpec:
        role = "decode" if name == "d" else "prefill"
        generation = changes.get("generation", 1) if role == "prefill" else 1
        assert isinstance(generation, int)
        return EndpointSpec(
            name,
            "ver_1",
            f"http://{name}",
            deployment_id="dep_1",
            generation=generation,
            role=role,
            split_tokens=500 if role == "decode" else 0,
        )

    def endpoint(self, name: str) -> Endpoint:
        found = self.endpoints.find(name)
        assert found is not None
        return found

    def eject(self, name: str) -> None:
        endpoint = self.endpoint(name)
        endpoint.breaker.fail(0.0, is_probe=False)
        endpoint.follow_health()

    def plan(self, work: Work = long_work) -> tuple[Lease, Lease | None]:
        answering = self.picker.lease(pools, work, 0.0)
        return answering, self.splitter.lease(answering, work, 0.0)


def test_those_for_prompts_are_not_asked_to_answer() -> None:
    fleet = Fleet()
    for _ in range(10):
        assert fleet.picker.lease(pools, Work(10, 10), 0.0).endpoint.spec.id == "d"


def test_a_long_prompt_is_counted_where_it_is_computed() -> None:
    fleet = Fleet()
    answering, first = fleet.plan()
    assert first is not None
    assert fleet.endpoint("d").queued_prefill_tokens == 0
    assert first.endpoint.queued_prefill_tokens == 1000
    first.release()
    answering.release()
    for name in ("p0", "p1", "d"):
        endpoint = fleet.endpoint(name)
        assert (endpoint.in_flight_requests, endpoint.in_flight_tokens) == (0, 0)


def test_prompts_go_to_the_less_busy_of_them() -> None:
    fleet = Fleet()
    chosen = [fleet.plan()[1] for _ in range(4)]
    assert sorted(lease.endpoint.spec.id for lease in chosen if lease) == ["p0", "p0", "p1", "p1"]


@pytest.mark.parametrize("tokens", [1, 499, 500])
def test_a_prompt_up_to_the_threshold_stays_whole(tokens: int) -> None:
    assert Fleet().plan(Work(tokens, 10))[1] is None


def test_where_the_queue_for_prompts_is_long_the_prompt_stays_whole() -> None:
    fleet = Fleet(prefillers=1)
    queue = [fleet.plan()[1] for _ in range(8)]
    assert queue[0] is not None
    assert queue[-1] is None


def test_ejected_ones_and_those_of_another_generation_are_passed_over() -> None:
    assert Fleet(generation=2).plan()[1] is None
    fleet = Fleet(prefillers=1)
    fleet.eject("p0")
    assert fleet.plan()[1] is None


def test_they_answer_where_nobody_else_can() -> None:
    fleet = Fleet(prefillers=1)
    fleet.eject("d")
    answering, first = fleet.plan()
    assert (answering.endpoint.spec.id, first) == ("p0", None)


def test_both_legs_can_be_explained_as_one_attempt() -> None:
    fleet = Fleet()
    fleet.plan()
    second, first = fleet.log.of("req_1")
    assert (first.leg, first.attempt, first.chosen_id in ("p0", "p1")) == ("prefill", 1, True)
    assert (second.leg, second.attempt, second.chosen_id) == ("", 1, "d")
    assert first.candidates[0].cost < first.candidates[0].terms["whole_s"]
    assert fleet.log.attempts("req_1") == 1


def test_a_half_always_needs_another_and_answers_nothing_alone() -> None:
    endpoints = EndpointSet()
    made = [Fleet.spec(name) for name in ("p0", "d")]
    endpoints.update(dataclasses.replace(each, is_half=True, split_tokens=0) for each in made)
    picker, splitter = Picker(endpoints, random.Random(1)), Splitter(endpoints)
    short = Work(3, 10)
    answering = picker.lease(pools, short, 0.0)
    assert answering.endpoint.spec.id == "d"
    other = splitter.lease(answering, short, 0.0)
    assert other is not None
    assert other.endpoint.spec.id == "p0"
    assert splitter.lease(answering, short, 0.0, excluded={"p0"}) is None
    with pytest.raises(Unavailable):
        picker.lease(pools, short, 0.0, excluded={"d"})
