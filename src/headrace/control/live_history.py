"""The last minutes of traffic as rates and quantiles, for whoever looks at the platform now.

A sample of the traffic book's totals is taken every other second; a point compares a sample with
one some seconds before it. Nothing is stored: a control plane that restarts begins anew.

    requests, tokens     over `rate_window_s`
    first tokens         over `quantile_window_s`, because a few requests are no distribution
    running, waiting     as they are

When something last came back to somebody is what the gateways say, so that it holds also after this
process's own restart.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.control.goodput_history import GoodputHistory
from headrace.control.rollout_health import quantile, share_within
from headrace.control.traffic import PresentLoad, TrafficBook
from headrace.control.watch_loop import look_again
from headrace.spec.deployments import Deployment
from headrace.spec.models import Model
from headrace.spec.signals import first_token_bounds_s
from headrace.storage.store import Store

sample_interval_s = 2.0
samples_max = 180  # six minutes
settling_s = 6.0  # after a start, for every gateway's totals so far to be heard of
rate_window_s = 10.0
quantile_window_s = 60.0
success_age_s_max = 60.0  # a success that is older proves nothing about now
objective_first_token_s = 2.0  # what counts as good

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals at a moment."""

    monotonic_s: float
    wall_s: float
    arrived_requests: int
    failures: int
    tokens: int  # prompts and answers of requests that ended
    completion_tokens: int
    first_tokens: tuple[int, ...]  # counts by `first_token_bounds_s`, the last beyond them
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Point:
    """What happened around a moment; a latency is None when nothing was answered."""

    time_s: float
    requests_per_s: float
    tokens_per_s: float
    completion_tokens_per_s: float
    failures_per_s: float
    first_token_p50_s: float | None
    first_token_p99_s: float | None
    good_share: float | None  # of first tokens, within the objective
    running: int
    waiting: int


class LiveHistory:
    """Samples of the traffic book, at most `samples_max`."""

    def __init__(
        self, store: Store, book: TrafficBook, clock: Clock, gateway_count: int = 1
    ) -> None:
        """`gateway_count` is how many gateways there are to hear of before the first sample."""
        self._gateway_count = gateway_count
        self._store = store
        self._book = book
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=samples_max)
        self._begin_s = clock.monotonic_s() + settling_s  # at the latest
        self.goodput = GoodputHistory(book, clock)

    async def run(self, stop: asyncio.Event) -> None:
        """Take samples until told to stop."""
        away = Absence(
            logger, self._clock, "no samples of the traffic are taken", "the traffic is seen again"
        )
        await look_again(self.take, stop, lambda: True, interval_s=sample_interval_s, absence=away)

    def take(self) -> None:
        """Take one sample; none while what is heard of may have happened before this start."""
        now_s = self._clock.monotonic_s()
        if now_s < self._begin_s and self._book.gateways_heard < self._gateway_count:
            return
        models = [model.name for model in self._store.list(Model)]
        self.goodput.take(models)
        totals = [self._book.totals_of(item.id) for item in self._store.list(Deployment)]
        first_tokens = [0] * (len(first_token_bounds_s) + 1)
        for total in totals:
            for position, count in enumerate(total.first_tokens):
                first_tokens[position] += count
        self._samples.append(
            Sample(
                monotonic_s=now_s,
                wall_s=self._clock.wall_s(),
                arrived_requests=sum(self._book.arrived(name).requests for name in models),
                failures=sum(total.failures for total in totals),
                tokens=sum(total.prompt_tokens + total.completion_tokens for total in totals),
                completion_tokens=sum(total.completion_tokens for total in totals),
                first_tokens=tuple(first_tokens),
                running=sum(load.in_flight_requests for load in self.loads().values()),
                waiting=sum(self._book.waiting(name, now_s).requests for name in models),
            )
        )

    def loads(self) -> dict[str, PresentLoad]:
        """What is under way now, by deployment id."""
        now_s = self._clock.monotonic_s()
        deployments = self._store.list(Deployment)
        return {item.id: self._book.load(item.id, now_s) for item in deployments}

    def success_age_s(self) -> float | None:
        """Since something came back to somebody; None: nothing since the gateways started."""
        return self._book.success_age_s(self._clock.monotonic_s())

    def points(self) -> list[Point]:
        """A point for each sample but the first, the oldest first."""
        samples = list(self._samples)
        return [
            point_of(
                samples[index],
                earlier(samples, index, rate_window_s),
                earlier(samples, index, quantile_window_s),
            )
            for index in range(1, len(samples))
        ]


def earlier(samples: Sequence[Sample], index: int, window_s: float) -> Sample:
    """The oldest sample that is at most a window before this one, and never this one."""
    first = index - 1
    while first > 0 and samples[index].monotonic_s - samples[first - 1].monotonic_s <= window_s:
        first -= 1
    return samples[first]


def point_of(now: Sample, rate_from: Sample, quantile_from: Sample) -> Point:
    """What happened since two earlier samples; totals that fell count as no change."""
    elapsed_s = max(now.monotonic_s - rate_from.monotonic_s, 0.001)

    def rate(count: int, before: int) -> float:
        return max(0, count - before) / elapsed_s

    pairs = zip(now.first_tokens, quantile_from.first_tokens, strict=True)
    came = [max(0, count - before) for count, before in pairs]
    answered = sum(came) > 0
    return Point(
        time_s=now.wall_s,
        requests_per_s=rate(now.arrived_requests, rate_from.arrived_requests),
        tokens_per_s=rate(now.tokens, rate_from.tokens),
        completion_tokens_per_s=rate(now.completion_tokens, rate_from.completion_tokens),
        failures_per_s=rate(now.failures, rate_from.failures),
        first_token_p50_s=quantile(came, 0.5) if answered else None,
        first_token_p99_s=quantile(came, 0.99) if answered else None,
        good_share=share_within(came, objective_first_token_s) if answered else None,
        running=now.running,
        waiting=now.waiting,
    )
