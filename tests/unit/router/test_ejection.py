"""When a dead endpoint gets its last request, in exact time: 200 requests a second, a thousandth of
a second to find out that nobody listens."""

import heapq
import random
from dataclasses import dataclass, field

import pytest

from headrace.base.errors import Unavailable
from headrace.router.breaker import ejection_s_min
from headrace.router.decision_log import DecisionLog
from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker
from headrace.router.policies import policies

interval_s, refusal_s, answer_s = 0.005, 0.001, 0.05
killed_s, ended_s = 1.0, 12.0
dead = "rep_0"


@dataclass(order=True)
class Event:
    """A request that comes, or the end of an attempt."""

    at_s: float
    number: int
    lease: Lease | None = field(default=None, compare=False)
    tried: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass
class Traffic:
    """Requests over three endpoints, one of which dies under them."""

    picker: Picker
    failed: int = 0
    first_failure_s: float | None = None
    events: list[Event] = field(default_factory=list)

    def run(self) -> None:
        count = int(ended_s / interval_s)
        self.events = [Event(number * interval_s, number) for number in range(count)]
        heapq.heapify(self.events)
        while self.events:
            event = heapq.heappop(self.events)
            if event.lease is None:
                self.begin(event)
            else:
                self.end(event, event.lease)

    def begin(self, event: Event) -> None:
        work = Work(100, 10, request_id=f"req_{event.number}")
        try:
            lease = self.picker.lease([("ver_1", 1)], work, event.at_s, event.tried)
        except Unavailable:
            self.failed += 1
            return
        name = lease.endpoint.spec.id
        is_refused = name == dead and event.at_s >= killed_s
        takes_s = refusal_s if is_refused else answer_s
        end_s = event.at_s + takes_s
        if name == dead and event.at_s < killed_s < end_s:
            end_s = killed_s  # its connection breaks with the process
        heapq.heappush(self.events, Event(end_s, event.number, lease, event.tried | {name}))

    def end(self, event: Event, lease: Lease) -> None:
        is_broken = lease.endpoint.spec.id == dead and event.at_s >= killed_s
        if not is_broken:
            lease.answered()
            lease.succeed()
        else:
            lease.fail(event.at_s)
            if self.first_failure_s is None:
                self.first_failure_s = event.at_s
        lease.release()
        if is_broken:
            self.begin(Event(event.at_s, event.number, tried=event.tried))


@pytest.mark.parametrize("policy", sorted(policies))
def test_a_dead_endpoint_gets_nothing_but_probes_from_its_first_failure_on(policy: str) -> None:
    rng = random.Random(1)
    endpoints = EndpointSet()
    endpoints.update(EndpointSpec(f"rep_{n}", "ver_1", "http://x") for n in range(3))
    log = DecisionLog()
    traffic = Traffic(Picker(endpoints, rng, policies[policy](rng), log=log))
    traffic.run()
    assert traffic.failed == 0
    assert traffic.first_failure_s is not None
    assert traffic.first_failure_s <= killed_s + interval_s * 100
    decisions = [d for number in range(int(ended_s / interval_s)) for d in log.of(f"req_{number}")]
    chosen_s = sorted(each.monotonic_s for each in decisions if each.chosen_id == dead)
    before_s = [at_s for at_s in chosen_s if at_s <= traffic.first_failure_s]
    probes_s = [at_s for at_s in chosen_s if at_s > traffic.first_failure_s]
    assert before_s
    for count, at_s in enumerate(probes_s, start=1):
        assert at_s - traffic.first_failure_s >= ejection_s_min * (2**count - 1)
    assert len(probes_s) == 4, "at 0.5, 1.5, 3.5 and 7.5 seconds"
