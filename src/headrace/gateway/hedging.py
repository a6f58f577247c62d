"""A request at two replicas at once: when the second is asked, who wins, who bears the rest.

    first attempt ──── no first byte for `delay_s` ──> second attempt at another replica
          └── whichever has the first byte answers; the other is cancelled at its engine

The tenant pays for the attempt that answered. What the other one used is a request of its own,
`<request id>.hedge`, reserved before it is sent and settled once its engine has told; the platform
bears it (`borne`). A second attempt is taken from the retry budget, and goes to replicas with room
only.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Literal, TypeVar

from headrace.base.errors import HeadraceError
from headrace.gateway.account import Account
from headrace.gateway.attempt import Attempt
from headrace.gateway.borne import BorneAttempts
from headrace.gateway.metrics import GatewayCounters
from headrace.router.endpoint import EndpointSpec

Result = TypeVar("Result")

first_outputs_kept = 256  # of a deployment, newest; a quantile of them follows within minutes
first_outputs_min = 20  # fewer tell no quantile
deployments_max = 4096  # whose first outputs are kept; the oldest go
header_name = b"x-headrace-hedge"  # won: the second replica answered; lost: the first did


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
    """What hedged requests share: how long first outputs take, and how races end."""

    def __init__(self, borne: BorneAttempts, counters: GatewayCounters) -> None:
        self._borne = borne
        self._counters = counters
        self._first_outputs: dict[tuple[str, bool], deque[float]] = {}

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
        """Count a race, and have settled what the attempt used that did not answer."""
        result, account = race.result, race.second_account
        if result is None or account is None:
            return
        self._counters.hedges[result] += 1
        lost = race.first if race.winner is race.second else race.second
        assert lost is not None, "a race has two attempts"
        self._borne.settle(account, lost, prompt_tokens)
