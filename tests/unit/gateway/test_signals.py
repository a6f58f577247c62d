"""Signals say what happened where, also to attempts that a retry hid."""

import random

from headrace.gateway.signals import TrafficCounts
from headrace.gateway.waiting_room import WaitingRoom
from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker
from headrace.sim.clock import ManualClock
from headrace.spec.settlements import TokenUsage


def spec(name: str, generation: int) -> EndpointSpec:
    return EndpointSpec(
        name, "ver_1", f"http://{name}", deployment_id="dep_1", generation=generation
    )


def test_each_generation_has_its_own_counts_and_what_is_gone_has_none() -> None:
    endpoints = EndpointSet()
    old, new = spec("old", 1), spec("new", 2)
    endpoints.update([old, new])
    room = WaitingRoom(Picker(endpoints, random.Random(1)), ManualClock())
    clock = ManualClock()
    counts = TrafficCounts("gwy_1", clock)
    counts.arrived("demo", 120)
    for place in (old, old, new):
        counts.attempted(place)
    counts.failed(new)
    assert counts.view(endpoints, room).success_age_s is None  # nothing came back to anybody
    counts.first_output(old, 0.25)
    clock.advance(3.0)
    counts.used(old, TokenUsage(100, 40, 7))
    counts.streamed(old, 0.57, 0.6, 7)
    counts.streamed(old, 0.3, 0.6, 7)  # its reader held it up: it may have come in half the time
    counts.streamed(old, 0.0, 0.0, 1)  # one token has no time to another
    Lease(endpoints.pool("ver_1")[0], Work(1000, 10), 0.0)
    view = counts.view(endpoints, room)
    first, second = view.generations
    assert view.success_age_s == 3.0
    assert (first.attempts_total, first.failures_total, first.queued_tokens) == (2, 0, 1000)
    assert (first.prompt_tokens_total, first.cached_tokens_total) == (100, 40)
    assert sum(first.first_tokens) == first.first_tokens[3] == 1
    assert sum(first.inter_tokens) == first.inter_tokens[8] == 1  # up to 0.1 s
    assert sum(second.inter_tokens) == 0
    assert (second.generation, second.attempts_total, second.failures_total) == (2, 1, 1)
    (model,) = view.models
    assert (model.arrived_requests_total, model.arrived_tokens_total) == (1, 120)
    endpoints.update([new])
    assert [g.generation for g in counts.view(endpoints, room).generations] == [2]
