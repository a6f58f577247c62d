"""Which queue treats tenants fairly when every replica is full?

    python bench/sim_fairness.py [--seeds 5] > table.md

Replicas are `slots` places that each compute `slot_tokens_per_s`; who is next is asked whenever one
is free. Compared: headrace's own `FairQueue`, first in first out, deficit round robin by requests,
and VTC (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): the tenant with the
least service so far goes next, prompts and outputs are charged as they are really served, and a
tenant that comes back is lifted to the least of those that wait. Virtual time, the same everywhere.
"""

import argparse
import heapq
import itertools
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.router.fair_queue import FairQueue, Ticket
from headrace.spec.priority import Priority

slots, slot_tokens_per_s = 16, 500.0
duration_s = 600.0
modest = "modest"  # asks for less than its share; the others flood


@dataclass(frozen=True)
class Tenant:
    """What one tenant asks, all the time."""

    name: str
    rate_per_s: float
    prompt_tokens: int
    output_tokens: int
    declared_tokens: int  # `max_tokens`: all that a gateway knows of an answer


@dataclass(frozen=True, eq=False)
class Asked:
    """One request."""

    tenant: Tenant
    arrival_s: float

    @property
    def used_tokens(self) -> int:
        return self.tenant.prompt_tokens + self.tenant.output_tokens


class Queue(Protocol):
    def push(self, asked: Asked) -> None: ...
    def pop(self) -> Asked | None: ...
    def ended(self, asked: Asked) -> None: ...


class Fifo:
    def __init__(self) -> None:
        self._waiting: deque[Asked] = deque()

    def push(self, asked: Asked) -> None:
        self._waiting.append(asked)

    def pop(self) -> Asked | None:
        return self._waiting.popleft() if self._waiting else None

    def ended(self, asked: Asked) -> None:
        """Nothing is counted."""


class Fair:
    """The real queue, with what it is told of a request's cost when it comes, and once it ended."""

    def __init__(self, cost: Callable[[Tenant], int], *, is_settled: bool = False) -> None:
        self._queue: FairQueue[Asked] = FairQueue(1 << 20)
        self._cost = cost
        self._is_settled = is_settled

    def push(self, asked: Asked) -> None:
        tenant = asked.tenant
        self._queue.push(Ticket(tenant.name, Priority.STANDARD, self._cost(tenant), asked))

    def pop(self) -> Asked | None:
        ticket = self._queue.next()
        if ticket is None:
            return None
        self._queue.start(ticket)
        return ticket.item

    def ended(self, asked: Asked) -> None:
        """What it was charged and did not use goes back."""
        if self._is_settled:
            tenant = asked.tenant
            unused_tokens = self._cost(tenant) - asked.used_tokens
            self._queue.give_back(tenant.name, Priority.STANDARD, unused_tokens)


class Vtc:
    """Virtual token counters; a request is charged when it starts, by what it will really use."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Asked]] = {}
        self._served: dict[str, int] = {}

    def push(self, asked: Asked) -> None:
        name = asked.tenant.name
        if not self._waiting.get(name):
            least = min((self._served[other] for other, q in self._waiting.items() if q), default=0)
            self._served[name] = max(self._served.get(name, 0), least)
        self._waiting.setdefault(name, deque()).append(asked)

    def pop(self) -> Asked | None:
        waiting = [name for name, queue in self._waiting.items() if queue]
        if not waiting:
            return None
        name = min(waiting, key=lambda each: self._served[each])
        asked = self._waiting[name].popleft()
        self._served[name] += asked.used_tokens
        return asked

    def ended(self, asked: Asked) -> None:
        """It knew the cost at the start."""


def declared_tokens_of(tenant: Tenant) -> int:
    """What a gateway knows of a request's cost when it comes."""
    return tenant.prompt_tokens + tenant.declared_tokens


queues: dict[str, Callable[[], Queue]] = {
    "headrace": lambda: Fair(declared_tokens_of, is_settled=True),
    "headrace, nothing given back": lambda: Fair(declared_tokens_of),
    "first in, first out": Fifo,
    "round robin by requests": lambda: Fair(lambda _: 2048),
    "VTC": Vtc,
}
short = Tenant("short", 40.0, 150, 100, 100)
long = Tenant("long", 6.0, 2000, 400, 400)
gentle = Tenant(modest, 1.0, 600, 200, 200)
cases: dict[str, tuple[Tenant, ...]] = {
    "a flood of short requests, a flood of long ones, a modest tenant": (short, long, gentle),
    "the same, and the long ones declare eight times what they use": (
        short,
        replace(long, declared_tokens=3200),
        gentle,
    ),
}


def arrivals_of(tenants: Sequence[Tenant], seed: int) -> list[Asked]:
    found = []
    for tenant in tenants:
        rng, at_s = random.Random(f"{seed}/{tenant.name}"), 0.0
        while (at_s := at_s + rng.expovariate(tenant.rate_per_s)) < duration_s:
            found.append(Asked(tenant, at_s))
    return sorted(found, key=lambda asked: asked.arrival_s)


def run(queue: Queue, tenants: Sequence[Tenant], seed: int) -> tuple[float, float]:
    """Tokens of the flood that got less over the one that got more; the modest one's p90 wait."""
    served, waits = dict.fromkeys((tenant.name for tenant in tenants), 0), []
    busy: list[tuple[float, int, Asked]] = []  # when each taken slot is free
    numbers = itertools.count()
    coming = deque(arrivals_of(tenants, seed))
    now_s = 0.0
    while coming and now_s < duration_s:
        now_s = coming[0].arrival_s
        if len(busy) == slots and busy[0][0] < now_s:
            now_s = busy[0][0]
        else:
            queue.push(coming.popleft())
        while busy and busy[0][0] <= now_s:
            queue.ended(heapq.heappop(busy)[2])
        while len(busy) < slots and (asked := queue.pop()) is not None:
            served[asked.tenant.name] += asked.used_tokens
            if asked.tenant.name == modest:
                waits.append(now_s - asked.arrival_s)
            end_s = now_s + asked.used_tokens / slot_tokens_per_s
            heapq.heappush(busy, (end_s, next(numbers), asked))
    floods = [tokens for name, tokens in served.items() if name != modest]
    return min(floods) / max(floods), statistics.quantiles(waits, n=10)[-1]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    for title, tenants in cases.items():
        print(f"\n{title.capitalize()}:\n")
        print("| queue | tokens of the flood that got less, over the other's (range) "
              "| wait of the modest tenant, p90 (range) |\n|---|---|---|")  # fmt: skip
        for name, make in queues.items():
            found = [run(make(), tenants, seed) for seed in range(1, options.seeds + 1)]
            cells = [
                f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"
                for values in zip(*found, strict=True)
            ]
            print(f"| {name} | {cells[0]} | {cells[1]} s |")


if __name__ == "__main__":
    main(sys.argv[1:])
