"""Many requests: so many at a time (closed loop), or at random moments of a rate (open loop).

In the open loop a request's time counts from the moment it was due, so that a server that falls
behind can't hide it by slowing the client down.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.cli.loadgen.client import LoadClient, Sample
from headrace.cli.loadgen.workload import Workload, arrival_times_s

requests_max = 1_000_000  # bounds the samples in memory
prepared_max = 4096  # request bodies made before the clock starts


@dataclass(frozen=True, slots=True)
class Level:
    """How hard to push: until `request_count` were sent or `duration_s` passed."""

    concurrency: int  # most requests in flight
    request_count: int | None
    duration_s: float | None
    rate_per_s: float | None = None  # None: the next request starts when one ends

    @property
    def name(self) -> str:
        """Keeps the prompts of levels apart."""
        return f"c{self.concurrency}r{self.rate_per_s or 0}"


@dataclass(frozen=True, slots=True)
class LevelResult:
    """What a level showed."""

    level: Level
    samples: list[Sample]
    start_s: float
    end_s: float
    client_cpu_s: float  # processor time that the client itself used meanwhile
    errors: Counter[str]


async def run_level(
    client: LoadClient, workload: Workload, level: Level, clock: Clock
) -> LevelResult:
    """Run one level to its end; requests in flight at the end are waited for."""
    count_max = min(level.request_count or requests_max, requests_max)
    arrivals_s = _arrivals(level, workload.seed, count_max)
    if arrivals_s is not None:
        count_max = len(arrivals_s)
    bodies = [workload.body(level.name, index) for index in range(min(count_max, prepared_max))]
    samples: list[Sample] = []
    start_s = clock.monotonic_s()
    start_cpu_s = time.process_time()
    stop_s = None if level.duration_s is None else start_s + level.duration_s
    numbers = iter(range(count_max))

    async def work() -> None:
        for number in numbers:  # shared: each worker takes the next number
            due_s = None if arrivals_s is None else start_s + arrivals_s[number]
            if stop_s is not None and (due_s or clock.monotonic_s()) >= stop_s:
                return
            if due_s is not None:
                await asyncio.sleep(max(0.0, due_s - clock.monotonic_s()))
            ready = number < len(bodies)
            body = bodies[number] if ready else workload.body(level.name, number)
            samples.append(await client.ask(workload, body, due_s))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(level.concurrency, count_max)):
            group.create_task(work())
    return LevelResult(
        level=level,
        samples=samples,
        start_s=start_s,
        end_s=max((sample.end_s for sample in samples), default=clock.monotonic_s()),
        client_cpu_s=time.process_time() - start_cpu_s,
        errors=Counter(sample.error for sample in samples if sample.error is not None),
    )


def _arrivals(level: Level, seed: int, count_max: int) -> list[float] | None:
    """Seconds after the start at which requests are due; None in the closed loop."""
    if level.rate_per_s is None:
        return None
    if level.duration_s is not None:
        # Twice the expected number: the clock ends the level before they run out.
        count_max = min(count_max, int(level.rate_per_s * level.duration_s * 2) + 100)
    return arrival_times_s(level.rate_per_s, seed, count_max)
