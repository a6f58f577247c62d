"""A request at two replicas at once: when the second is asked, who wins, who bears the rest.

    first attempt ──── no first byte for `delay_s` ──> second attempt at another replica
          └── whichever has the first byte answers; the other is cancelled at its engine

The tenant pays for the attempt that answered. What the other one used is a request of its own,
`<request id>.hedge`, reserved before it is sent and settled once its engine has told; the platform
bears it. A second attempt is taken from the retry budget, and goes to replicas with room only.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, Literal, TypeVar

from headrace.adapters.registry import find_adapter
from headrace.base.errors import HeadraceError
from headrace.gateway.account import Account
from headrace.gateway.metrics import GatewayCounters
from headrace.gateway.upstream import ask_usage
from headrace.http.client import HttpClient
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome, Reservation, TokenUsage
from headrace.router.endpoint import EndpointSpec
from headrace.router.lease import Lease
from headrace.spec.prices import Price, PriceVersion
from headrace.spec.settlements import platform_tenant_id

Result = TypeVar("Result")

first_outputs_kept = 256  # of a deployment, newest; a quantile of them follows within minutes
first_outputs_min = 20  # fewer tell no quantile
deployments_max = 4096  # whose first outputs are kept; the oldest go
settle_timeout_s = 10.0  # at the end of a gateway, for engines to tell what the others used
suffix = ".hedge"
header_name = b"x-headrace-hedge"  # won: the second replica answered; lost: the first did
project_id = "hedging"
free = PriceVersion(
    platform_tenant_id,
    Price(
        input_nanousd_per_million=0,
        cached_input_nanousd_per_million=0,
        output_nanousd_per_million=0,
    ),
)


class Attempt:
    """One try of a request at one endpoint."""

    __slots__ = (
        "has_failed",
        "has_output",
        "is_split",
        "lease",
        "meet",
        "prefilled_at",
        "request_id",
        "sent_to",
        "start_s",
    )

    def __init__(self, lease: Lease, request_id: str, start_s: float) -> None:
        self.lease = lease
        self.request_id = request_id  # by which its engine knows it
        self.start_s = start_s
        self.sent_to: EndpointSpec | None = None  # where it may have used something
        self.prefilled_at: tuple[EndpointSpec, str] | None = None  # its prompt, and by which id
        # Has another engine compute the prompt, and says how this one finds it; None: it does both.
        self.meet: Callable[[], Mapping[str, object]] | None = None
        self.is_split = False  # its prompt's KV came from there
        self.has_output = False
        self.has_failed = False

    @property
    def spec(self) -> EndpointSpec:
        """The replica."""
        return self.lease.endpoint.spec


class Outrun(Exception):
    """The other attempt answered first."""


Run = Callable[[Attempt], Coroutine[Any, Any, Result]]
BeginSecond = Callable[[], tuple[Attempt, Account] | None]  # None: there is no room for one


class Race(Generic[Result]):
    """Two attempts, or one if it is quick."""

    def __init__(self, first: Attempt) -> None:
        self.first = first
        self.second: Attempt | None = None
        self.second_account: Account | None = None
        self.winner: Attempt | None = None
        self._claimed = asyncio.Event()

    @property
    def result(self) -> str | None:
        """Who answered: `won` means the second; `none` that both failed. None: it was no race."""
        if self.second is None:
            return None
        if self.winner is None:
            return "none"
        return "won" if self.winner is self.second else "lost"

    def claim(self, attempt: Attempt) -> None:
        """The attempt has its first byte; Outrun if the other had it before."""
        if self.winner is None:
            self.winner = attempt
            self._claimed.set()
        elif self.winner is not attempt:
            raise Outrun

    async def run(self, run: Run[Result], delay_s: float, begin_second: BeginSecond) -> Result:
        """The answer of whichever is first; raises what the last of them failed with."""
        claimed = asyncio.create_task(self._claimed.wait())
        tasks = {self.first: asyncio.create_task(run(self.first))}
        try:
            both = (claimed, *tasks.values())
            await asyncio.wait(both, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
            begun = None if any(task.done() for task in both) else begin_second()
            if begun is not None:
                self.second, self.second_account = begun
                tasks[self.second] = asyncio.create_task(run(self.second))
            return await self._best(tasks, claimed)
        finally:
            for task in (claimed, *tasks.values()):
                task.cancel()
            await asyncio.gather(claimed, *tasks.values(), return_exceptions=True)

    async def _best(
        self, tasks: dict[Attempt, asyncio.Task[Result]], claimed: asyncio.Task[Literal[True]]
    ) -> Result:
        failure: BaseException | None = None
        pending = dict(tasks)
        while pending and self.winner is None:
            waited = (claimed, *pending.values())
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for attempt, task in tasks.items():
                if attempt in pending and task.done() and self.winner is not attempt:
                    del pending[attempt]
                    attempt.has_failed = True
                    failure = task.exception()
                    if not isinstance(failure, HeadraceError) or not failure.retryable:
                        return await task  # what is the caller's fault is so at the other too
        if self.winner is None:
            assert failure is not None, "an attempt that answers claims before it ends"
            raise failure
        for attempt, task in tasks.items():
            if attempt is not self.winner:
                task.cancel()
        return await tasks[self.winner]


class Hedger:
    """What hedged requests share: how long first outputs take, and the settling of the others."""

    def __init__(self, client: HttpClient, counters: GatewayCounters) -> None:
        self._client = client
        self._counters = counters
        self._first_outputs: dict[tuple[str, bool], deque[float]] = {}
        self._settling: set[asyncio.Task[None]] = set()

    def delay_s(self, spec: EndpointSpec, *, shows_progress: bool) -> float | None:
        """How long to wait for the first byte before another replica is asked; None: for ever.

        An answer that comes whole has no byte before its end, so only what such answers took
        lately tells that one is late."""
        hedging = spec.hedging
        if hedging is None:
            return None
        quantile = hedging.first_output_quantile
        if quantile is None:
            return hedging.after_s if shows_progress else None
        known = self._first_outputs.get((spec.deployment_id, shows_progress), ())
        if len(known) < first_outputs_min:
            return hedging.after_s if shows_progress else None
        return max(hedging.after_s, sorted(known)[int(quantile * len(known))])

    def observe(self, spec: EndpointSpec, seconds: float, *, shows_progress: bool) -> None:
        """An attempt had its first byte after so long."""
        if spec.hedging is None:
            return
        key = (spec.deployment_id, shows_progress)
        known = self._first_outputs.get(key)
        if known is None:
            if len(self._first_outputs) >= deployments_max:
                self._first_outputs.pop(next(iter(self._first_outputs)))
            known = self._first_outputs[key] = deque(maxlen=first_outputs_kept)
        known.append(seconds)

    def ended(self, race: Race[Result], prompt_tokens: int) -> None:
        """Count a race, and settle what the attempt used that did not answer, once its engine has
        told; at once if the engine never does, by an estimate of its prompt."""
        result, account = race.result, race.second_account
        if result is None or account is None:
            return
        self._counters.hedges[result] += 1
        lost = race.first if race.winner is race.second else race.second
        assert lost is not None, "a race has two attempts"
        spec = lost.sent_to
        outcome = Outcome.FAILED if lost.has_failed else Outcome.ABORTED
        account.replica_id = lost.spec.id
        if spec is None:
            self._book(account, outcome, TokenUsage(), exact=True)
        elif not find_adapter(spec.engine).keeps_usage_records:
            self._book(account, outcome, TokenUsage(prompt_tokens), exact=False)
        else:
            task = asyncio.create_task(self._ask_and_book(account, outcome, spec, lost))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def close(self) -> None:
        """Wait for the settlements under way; those that do not come are left to the next start."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=settle_timeout_s)

    async def _ask_and_book(
        self, account: Account, outcome: Outcome, spec: EndpointSpec, lost: Attempt
    ) -> None:
        usage = await ask_usage(self._client, spec, lost.request_id)
        self._book(account, outcome, usage or TokenUsage(), exact=usage is not None)

    def _book(self, account: Account, outcome: Outcome, usage: TokenUsage, *, exact: bool) -> None:
        account.settle(outcome, usage, exact=exact)
        self._counters.hedge_lost_tokens += usage.prompt_tokens + usage.completion_tokens


def hedge_reservation(meter: Meter, reservation: Reservation) -> Reservation:
    """Reserve for a second attempt: the same worst case, on the platform's account."""
    return meter.reserve(
        request_id=reservation.request_id + suffix,
        tenant_id=platform_tenant_id,
        project_id=project_id,
        key_id="",
        model=reservation.model,
        price=free,
        credit_floor_nanousd=None,
        prompt_tokens_max=reservation.prompt_tokens_max,
        output_tokens_max=reservation.output_tokens_max,
    )
