"""Where requests come from: arrivals, shapes of prompts, and calls that follow from answers.

single        [group's shared beginning] [fresh]
conversation  turn n:  turn n-1's prompt + its answer + [fresh]
agent         root: [group] [fresh]; each child: the root's prompt + answer + [fresh], and so on
job           all at once, or so many at a time as the batch API has out of its input files
"""

import bisect
import itertools
import math
import random
from collections.abc import Callable
from operator import itemgetter

from headrace.sim.fleet.event_loop import EventLoop, Loop
from headrace.sim.fleet.lengths import Length
from headrace.sim.fleet.randomness import stream
from headrace.sim.fleet.request import (
    Outcome,
    Segment,
    SimRequest,
    answer_content,
    prefix_keys,
)
from headrace.sim.fleet.scenario import Scenario, Traffic
from headrace.sim.fleet.shapes import DrawnShapes, Shapes
from headrace.spec.priority import priorities_by_word

fresh_content_first = 1_000_000  # identities below are the groups'
groups_per_stream_max = 100_000
variants_offset = 50_000  # of their identities after the groups'
tokens_of = itemgetter(1)  # of a segment


NewShapes = Callable[[random.Random, Length, Length], Shapes]


class Identities:
    """Numbers that no other has."""

    def __init__(self) -> None:
        self.requests = itertools.count()
        self.contents = itertools.count(fresh_content_first)  # of texts


class TrafficSource:
    """One stream of a scenario."""

    def __init__(
        self,
        loop: Loop,
        spec: Traffic,
        *,
        index: int,
        scenario: Scenario,
        seed: int,
        identities: Identities,
        arrive: Callable[[SimRequest], None],
        new_shapes: NewShapes,
    ) -> None:
        self._loop = loop
        self._spec = spec
        self._arrive = arrive
        self._identities = identities
        self._arrivals = stream(seed, f"traffic/{spec.name}/arrivals")
        self._shapes = new_shapes(
            stream(seed, f"traffic/{spec.name}/shapes"), spec.fresh, spec.output
        )
        self._deployments = scenario.fleet.deployments
        self._end_s = scenario.duration_s if spec.until_s is None else spec.until_s
        self._first_group = index * groups_per_stream_max + 1
        self._first_variant = self._first_group + variants_offset
        self._group_ends = zipf_ends(spec.groups, spec.group_skew)
        self._is_poisson = spec.arrivals == "poisson"
        self._priority = priorities_by_word[spec.priority]
        self._rounds_left = spec.depth if spec.children else spec.turns - 1
        self._left_count = 0  # of a job's requests, not asked yet

    def start(self) -> None:
        """Ask the loop for the first arrival, or for all of them at once."""
        spec = self._spec
        if spec.arrivals == "all-at-once":
            self._left_count = round(spec.rate_per_s * (self._end_s - spec.from_s))
            for _ in range(min(self._left_count, spec.at_once or self._left_count)):
                self.next_of_job(spec.from_s)
        elif spec.rate_per_s > 0:
            self._next_after(spec.from_s)

    def next_of_job(self, time_s: float) -> None:
        """Ask the next request of a job then, if any is left."""
        if self._left_count:
            self._left_count -= 1
            self._loop.at(time_s, self._arrive, self._root(time_s))

    def follow_up(self, request: SimRequest) -> None:
        """A request of this stream was answered; ask what follows from it."""
        spec = self._spec
        level = request.session
        assert isinstance(level, Level)
        count = spec.children if spec.children else 1
        if level.left <= 0:
            return
        for _ in range(count):
            answer = Segment(answer_content, request.output_tokens)
            segments = (*request.segments, answer, self._fresh())
            child = self._request(
                segments, self._loop.now_s, request.deployment, request.tenant, level.left - 1
            )
            pause_s = self._shapes.random() * spec.pause_s
            child.arrival_s += pause_s
            self._loop.after(pause_s, self._arrive, child)

    def _next_after(self, time_s: float) -> None:
        if self._is_poisson:  # `rng.expovariate`, without a call for each request
            gap_s = -math.log(1.0 - self._arrivals.random()) / self._spec.rate_per_s
        else:
            gap_s = self._gap_s(time_s)
        arrival_s = time_s + gap_s
        if arrival_s < self._end_s:
            self._loop.at(arrival_s, self._on_arrival, None)

    def _on_arrival(self, _: None) -> None:
        now_s = self._loop.now_s
        self._arrive(self._root(now_s))
        self._next_after(now_s)

    def _gap_s(self, time_s: float) -> float:
        spec, rng = self._spec, self._arrivals
        if spec.arrivals == "gamma":
            shape = 1.0 / spec.burstiness
            return rng.gammavariate(shape, 1.0 / (shape * spec.rate_per_s))
        return self._diurnal_gap_s(time_s)

    def _diurnal_gap_s(self, time_s: float) -> float:
        """Thinning: candidates at the peak rate, each kept with the share of the moment."""
        spec, rng = self._spec, self._arrivals
        peak = 1.0 + spec.swing
        at_s = time_s
        while True:
            at_s += rng.expovariate(spec.rate_per_s * peak)
            phase = 2 * math.pi * at_s / spec.period_s
            if rng.random() * peak < 1.0 - spec.swing * math.cos(phase):
                return at_s - time_s

    def _root(self, arrival_s: float) -> SimRequest:
        spec, shapes = self._spec, self._shapes
        segments: tuple[Segment, ...] = (self._fresh(),)
        if spec.groups:
            group = bisect.bisect(self._group_ends, shapes.random() * self._group_ends[-1])
            if spec.variants:
                variant = group * spec.variants + shapes.below(spec.variants)
                segments = (Segment(self._first_variant + variant, round(spec.fresh.median)),)
            segments = (Segment(self._first_group + group, spec.group_tokens), *segments)
        deployment = shapes.below(self._deployments) if self._deployments > 1 else 0
        tenant = shapes.below(spec.tenants) if spec.tenants > 1 else 0
        return self._request(segments, arrival_s, deployment, tenant, self._rounds_left)

    def _session(self, left: int) -> "Level | JobPlace":
        return Level(self, left) if left else JobPlace(self)

    def _fresh(self) -> Segment:
        # Without the named tuple's own constructor, which is a call more with each request.
        content = next(self._identities.contents)
        return tuple.__new__(Segment, (content, self._shapes.fresh_tokens()))

    def _request(
        self,
        segments: tuple[Segment, ...],
        arrival_s: float,
        deployment: int,
        tenant: int,
        left: int,
    ) -> SimRequest:
        spec = self._spec
        return SimRequest(
            next(self._identities.requests),
            deployment,
            tenant,
            arrival_s,
            segments,
            prefix_keys(segments, tenant),
            sum(map(tokens_of, segments)),
            min(spec.max_tokens, self._shapes.output_tokens()),
            spec.max_tokens,
            session=self._session(left) if left or spec.at_once else None,
            priority=self._priority,
        )


def begin_traffic(
    scenario: Scenario,
    seed: int,
    loop: Loop,
    arrive: Callable[[SimRequest], None],
    new_shapes: NewShapes,
) -> None:
    """Ask the loop for the arrivals of all streams."""
    identities = Identities()
    for index, spec in enumerate(scenario.traffic):
        TrafficSource(
            loop,
            spec,
            index=index,
            scenario=scenario,
            seed=seed,
            identities=identities,
            arrive=arrive,
            new_shapes=new_shapes,
        ).start()


def arrivals_of(scenario: Scenario, seed: int) -> list[tuple[float, int]]:
    """Time and tokens of every request that follows from no answer."""
    found: list[tuple[float, int]] = []

    def note(request: SimRequest) -> None:
        found.append((request.arrival_s, request.prompt_tokens + request.output_tokens))

    loop = EventLoop()
    begin_traffic(scenario, seed, loop, note, DrawnShapes)
    loop.run()
    return found


class Level:
    """How many rounds still follow from a request, and who makes them."""

    __slots__ = ("left", "source")

    def __init__(self, source: TrafficSource, left: int) -> None:
        self.source = source
        self.left = left


class JobPlace:
    """One of the places of a job that is asked so many requests at a time."""

    __slots__ = ("source",)

    def __init__(self, source: TrafficSource) -> None:
        self.source = source


def zipf_ends(count: int, skew: float) -> list[float]:
    """Cumulated weights of `count` groups, the first the most popular."""
    weights = ((rank + 1) ** -skew for rank in range(count))
    return list(itertools.accumulate(weights))


def follow_up(request: SimRequest) -> None:
    """Let the source of a request that ended ask what follows from it."""
    session = request.session
    if isinstance(session, Level) and request.outcome is Outcome.FINISHED:
        session.source.follow_up(request)
    elif isinstance(session, JobPlace):
        session.source.next_of_job(request.end_s)


def draw_some(rng: random.Random, count: int, wanted: int) -> list[int]:
    """`wanted` different numbers below `count`, or all of them."""
    return sorted(rng.sample(range(count), min(count, wanted)))
