"""Where admitted requests wait while every endpoint of their model is full; `fair_queue` decides.

A request that finds room and nobody waiting passes through at once. Whoever frees a place calls
`pump`, and so does a timer, because endpoints also come, recover and learn that they have room.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, RateLimited, Unavailable
from headrace.observability.metrics import Histogram
from headrace.router.fair_queue import (
    FairQueue,
    Ticket,
    ticket_tokens_max,
    waiting_requests_max,
)
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker, Saturated, WeightedPool
from headrace.spec.priority import Priority

pump_interval_s = 0.05  # while anybody waits
rate_memory_s = 10.0  # the drain rate is of about so long
retry_after_s_min, retry_after_s_max = 1.0, 60.0
wake_s_max = 600.0  # for a model that is being started, whatever the class
wait_s_max: dict[Priority, float] = {
    Priority.INTERACTIVE: 30.0,  # nobody looks at a screen for longer
    Priority.STANDARD: 120.0,
    Priority.BATCH: 900.0,
}


@dataclass(frozen=True, slots=True)
class Errand:
    """What a request wants of the waiting room."""

    model_name: str
    tenant_id: str
    priority: Priority
    pools: tuple[WeightedPool, ...]
    work: Work
    wakes: bool = False  # a deployment is starting, or will for this: wait for it
    unable_ids: frozenset[str] = frozenset()  # endpoints that can't do what it asks
    trace_id: str = ""  # of a request whose trace is kept
    is_last: bool = True  # no other model answers if this one can't

    @property
    def tries_ejected(self) -> bool:
        """Whether an endpoint that failed lately is better than none."""
        return self.is_last and not self.wakes


@dataclass(eq=False, slots=True)
class Wait:
    """One request that waits: what it wants, and who is told of its lease."""

    errand: Errand
    lease: asyncio.Future[Lease]


class DrainRate:
    """How many tokens of requests start a second, lately; of one model."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._tokens = 0.0

    def count(self, tokens: int, now_s: float) -> None:
        """Requests of so many tokens started."""
        self._decay(now_s)
        self._tokens += tokens

    def seconds_for(self, tokens: int, now_s: float) -> float:
        """How long until so many have started, within the bounds of a Retry-After."""
        self._decay(now_s)
        if self._tokens < 1:
            return retry_after_s_max  # nothing moves
        seconds = tokens * rate_memory_s / self._tokens
        return min(retry_after_s_max, max(retry_after_s_min, seconds))

    def _decay(self, now_s: float) -> None:
        """Forget exponentially: the sum is of the last `rate_memory_s`, the older the less."""
        self._tokens *= math.exp((self._since_s - now_s) / rate_memory_s)
        self._since_s = now_s


class WaitingRoom:
    """The queues of one gateway; its event loop alone uses it."""

    def __init__(
        self,
        picker: Picker,
        clock: Clock,
        requests_max: int = waiting_requests_max,
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`refresh` looks whether the store knows of endpoints that the picker does not."""
        self._picker = picker
        self._refresh = refresh
        self._clock = clock
        self._requests_max = requests_max
        self._queues: dict[str, FairQueue[Wait]] = {}  # of the models where somebody waits
        self._rates: dict[str, DrainRate] = {}  # of every model that was used
        self._timer: asyncio.TimerHandle | None = None
        self.wait_s = Histogram()
        self.refused: Counter[str] = Counter()  # by priority

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits."""
        return not self._queues

    def waiting_count(self) -> int:
        """How many wait."""
        return sum(map(len, self._queues.values()))

    def waiting_by_model(self) -> dict[str, tuple[int, int]]:
        """How many requests wait, and their tokens, where any do."""
        return {name: (len(queue), queue.waiting_tokens) for name, queue in self._queues.items()}

    async def lease(self, errand: Errand) -> Lease:
        """A lease for the request, at once or when its turn comes.

        RateLimited if the queue is full of others' claims, Unavailable if its turn does not come
        in time or no endpoint is left; both say when to come back."""
        now_s = self._clock.monotonic_s()
        if errand.model_name not in self._queues:
            lease = await self._lease_at_once(errand)
            if lease is not None:
                self._rate(errand.model_name).count(lease.held_tokens, now_s)
                return lease
        return await self._wait(errand, now_s)

    async def _lease_at_once(self, errand: Errand) -> Lease | None:
        """A lease, or None if the request is to wait; looks at the store before it refuses.

        What the store knows goes before what is ejected."""
        try:
            return self._lease_now(errand)
        except Saturated:
            return None
        except Unavailable:
            if self._refresh is not None:
                await self._refresh()
        try:
            return self._lease_now(errand, tries_ejected=errand.tries_ejected)
        except Unavailable as error:
            if isinstance(error, Saturated) or errand.wakes:
                return None
            raise

    def _lease_now(
        self, errand: Errand, *, is_overdue: bool = False, tries_ejected: bool = False
    ) -> Lease:
        """A lease; what can wait leaves some places free, until it has waited for too long."""
        return self._picker.lease(
            errand.pools,
            errand.work,
            self._clock.monotonic_s(),
            errand.unable_ids,
            leaves_spare=errand.priority is Priority.BATCH and not is_overdue,
            tries_ejected=tries_ejected,
        )

    async def _wait(self, errand: Errand, now_s: float) -> Lease:
        queue = self._queues.setdefault(errand.model_name, FairQueue(self._requests_max))
        tokens = min(ticket_tokens_max, errand.work.prefill_tokens + errand.work.decode_tokens)
        wait = Wait(errand, asyncio.get_running_loop().create_future())
        ticket = Ticket(errand.tenant_id, errand.priority, tokens, wait)
        displaced = queue.push(ticket)
        if displaced is not None and not displaced.item.lease.done():
            displaced.item.lease.set_exception(self._full(displaced.item.errand))
        self._start_all(queue)
        self._set_timer()
        delivered = False
        try:
            async with asyncio.timeout(patience_s(errand)):
                lease = await wait.lease
            delivered = True
        except TimeoutError:
            raise self._too_late(errand) from None
        finally:
            queue.discard(ticket)
            if not delivered and is_granted(wait.lease):
                wait.lease.result().release()
            self.pump(errand.model_name)
        self.wait_s.observe(self._clock.monotonic_s() - now_s, errand.trace_id)
        return lease

    def settle(self, errand: Errand, turn_tokens: int, used_tokens: int) -> None:
        """A request that had its turn ended: its tenant is charged what it used, not declared."""
        queue = self._queues.get(errand.model_name)
        if queue is not None:
            queue.give_back(errand.tenant_id, errand.priority, turn_tokens - used_tokens)

    def pump(self, model_name: str) -> None:
        """A place may have become free for this model."""
        queue = self._queues.get(model_name)
        if queue is not None:
            self._start_all(queue)
            if not queue:
                del self._queues[model_name]

    def _start_all(self, queue: FairQueue[Wait]) -> None:
        """Start requests in their order as long as there is room."""
        now_s = self._clock.monotonic_s()
        while (ticket := queue.next()) is not None:
            errand, granted = ticket.item.errand, ticket.item.lease
            if granted.done():  # its client left, and it did not run since
                queue.discard(ticket)
                continue
            try:
                lease = self._lease_now(
                    errand,
                    is_overdue=queue.is_overdue(ticket),
                    tries_ejected=errand.tries_ejected,
                )
            except HeadraceError as error:
                if isinstance(error, Saturated) or errand.wakes:
                    return
                queue.discard(ticket)
                granted.set_exception(error)
                continue
            queue.start(ticket)
            lease.turn_tokens = ticket.tokens
            self._rate(errand.model_name).count(ticket.tokens, now_s)
            granted.set_result(lease)

    def _set_timer(self) -> None:
        if self._timer is None and self._queues:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(pump_interval_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for name in tuple(self._queues):
            self.pump(name)
        self._set_timer()

    def _rate(self, model_name: str) -> DrainRate:
        rate = self._rates.get(model_name)
        if rate is None:
            rate = self._rates[model_name] = DrainRate(self._clock.monotonic_s())
        return rate

    def _full(self, errand: Errand) -> RateLimited:
        self.refused[errand.priority.word] += 1
        return RateLimited(
            "This model is saturated and its queue is full; wait, or send fewer requests at once.",
            retry_after_s=self._retry_after_s(errand),
            priority=errand.priority.word,
        )

    def _too_late(self, errand: Errand) -> Unavailable:
        self.refused[errand.priority.word] += 1
        what = "starting" if errand.wakes else "saturated"
        return Unavailable(
            f"This model is {what}: no place became free within {patience_s(errand):g} s; "
            "try again.",
            retry_after_s=self._retry_after_s(errand),
            priority=errand.priority.word,
        )

    def _retry_after_s(self, errand: Errand) -> float:
        queue = self._queues.get(errand.model_name)
        waiting_tokens = 0 if queue is None else queue.waiting_tokens
        rate = self._rate(errand.model_name)
        return rate.seconds_for(waiting_tokens, self._clock.monotonic_s())


def patience_s(errand: Errand) -> float:
    """How long a request may wait."""
    return wake_s_max if errand.wakes else wait_s_max[errand.priority]


def is_granted(lease: asyncio.Future[Lease]) -> bool:
    """Whether a lease was given, and nobody may have taken it."""
    return lease.done() and not lease.cancelled() and lease.exception() is None
