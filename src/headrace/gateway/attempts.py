"""The attempts of one request: an endpoint after the other, as long as no byte went out.

    lease an endpoint -> send -> headers -> first output -> ... -> end
         ^                 |        |            |
         '--- retry -------'--------'------------'   within the budget, never twice the same one

What a broken attempt used is the platform's (`borne`). A deployment may want its slow attempts
raced by another one: see `hedging`. What an attempt does with its answer is `exchange`'s.
"""

import asyncio
from contextlib import suppress
from typing import Any, TypeVar

from headrace.base.errors import (
    DeadlineExceeded,
    HeadraceError,
    Unavailable,
)
from headrace.gateway.account import Account
from headrace.gateway.attempt import Attempt
from headrace.gateway.borne import hedge_suffix, try_suffix
from headrace.gateway.draining import Out, Outlet, Rest, outliving
from headrace.gateway.forwarding import EngineRequest, Forwarding
from headrace.gateway.halves import OtherHalf, with_other_half
from headrace.gateway.hedging import Race, Run, header_name
from headrace.gateway.metering import Metering
from headrace.gateway.traces import attempt_attributes
from headrace.http.asgi import Header
from headrace.router.fair_queue import ticket_tokens_max
from headrace.router.lease import Lease
from headrace.spec.settlements import TokenUsage

Result = TypeVar("Result")

attempts_max = 3
# What may take long before its first byte, as all of it comes at once.
long_works = (Metering.GENERATES, Metering.RELAYS)


class Attempts:
    """Where one request goes; `Exchange` knows what for."""

    def __init__(self, forwarding: Forwarding, request: EngineRequest, account: Account) -> None:
        self._forwarding = forwarding
        self._request = request
        self._account = account
        self._counted: Attempt | None = None  # whose use the caller pays for
        self._race: Race[Any] | None = None  # there is one at most
        self._outlet: Outlet | None = None
        self.rest: Rest | None = None  # of an answer whose caller left, which is to be finished
        self._turn_tokens = 0  # charged for its turn in the queue; 0: it did not wait
        self._used: TokenUsage | None = None  # of an attempt that ended well
        self.attempts = 0
        self.endpoint_id = ""

    @property
    def hedge_headers(self) -> list[Header]:
        """Which of two attempts answered, once that is known; empty if there was one."""
        result = None if self._race is None else self._race.result
        return [] if result is None else [(header_name, result.encode())]

    async def _with_retries(self, run: Run[Result]) -> Result:
        forwarding = self._forwarding
        forwarding.retries.deposit()
        excluded = set(self._request.errand.unable_ids)
        failure: HeadraceError | None = None
        trace = self._request.trace
        while True:
            if trace is not None:
                trace.phase("queue")
            try:
                lease = await self._lease(excluded)
            except Unavailable as error:
                raise failure or error from None
            attempt = self._begin(lease, self._request.request_id)
            self._count(attempt)
            if trace is not None:
                trace.phase("attempt", attempt_attributes(lease, self.attempts))
            excluded.add(lease.endpoint.spec.id)
            try:
                delay_s = self._hedge_delay_s(attempt)
                if delay_s is None:
                    return await self._tried(run, attempt)
                return await self._raced(run, attempt, delay_s, excluded)
            except HeadraceError as error:
                if trace is not None:
                    trace.failed(error.code)
                if not self._is_worth_another(error, excluded):
                    raise
                failure = error
            self._account.restart()
            self._bear(attempt)
            forwarding.counters.retries += 1

    def _bear(self, attempt: Attempt) -> None:
        """What a broken attempt used before another one follows is not its caller's."""
        reserve = self._request.borne_account
        if attempt.used_at is None or reserve is None:
            return
        attempt.has_failed = True
        suffix, borne = try_suffix(attempt.number), self._forwarding.borne
        if attempt.was_refused:
            borne.settle_if_used(lambda: reserve(suffix), attempt)
            return
        with suppress(HeadraceError):  # a full disk: the engine's counters have it still
            prompt_tokens = self._request.errand.work.prefill_tokens
            borne.settle(reserve(suffix), attempt, prompt_tokens)

    def _begin(self, lease: Lease, request_id: str) -> Attempt:
        self.attempts += 1
        self._forwarding.traffic.attempted(lease.endpoint.spec)
        now_s = self._forwarding.clock.monotonic_s()
        return Attempt(lease, request_id, now_s, self.attempts)

    def _count(self, attempt: Attempt) -> None:
        """The caller pays for this attempt from now on."""
        self._counted = attempt
        self.endpoint_id = self._account.replica_id = attempt.spec.id

    async def _tried(self, run: Run[Result], attempt: Attempt) -> Result:
        if not attempt.spec.runs_to_its_end:  # nearly always
            return await self._run(run, attempt)
        return await outliving(self._run(run, attempt), lambda task: self._keep(task, attempt))

    def _keep(self, task: asyncio.Task[Result], attempt: Attempt) -> bool:
        """Have what nobody waits for any more finished, if it was sent and its caller pays."""
        if attempt is not self._counted or attempt.sent_to is None:
            return False
        self.rest = self._forwarding.drains.keep(task)
        if self.rest is None:
            return False
        if self._outlet is not None:
            self._outlet.shut()
        return True

    def _to(self, attempt: Attempt, out: Out) -> Out:
        """Where an attempt writes: to the client, which one that outlives it can do without."""
        if not attempt.spec.runs_to_its_end:
            return out
        self._outlet = Outlet(out)
        return self._outlet

    async def _run(self, run: Run[Result], attempt: Attempt) -> Result:
        try:
            if attempt.spec.is_half:
                half = OtherHalf(self._forwarding, self._request)
                return await with_other_half(run, attempt, half)
            return await run(attempt)
        except HeadraceError as error:
            if error.retryable:
                self._forwarding.traffic.failed(attempt.spec)
            raise
        finally:
            attempt.lease.release()
            self._forwarding.room.pump(self._request.errand.model_name)

    def _hedge_delay_s(self, attempt: Attempt) -> float | None:
        """How long to wait before another replica is asked too; None: for ever."""
        if attempt.spec.hedging is None:  # nearly always
            return None
        if self._request.borne_account is None or self._race is not None:
            return None
        return self._forwarding.hedger.delay_s(attempt.spec, shows_progress=self._shows_progress)

    @property
    def _shows_progress(self) -> bool:
        """Whether the first byte comes before the work is done."""
        return self._request.streams or self._request.metering not in long_works

    async def _raced(
        self, run: Run[Result], first: Attempt, delay_s: float, excluded: set[str]
    ) -> Result:
        """As `_tried`, with a second attempt if the first is slow."""
        self._race = race = Race[Result](first)
        try:
            return await race.run(
                lambda each: self._tried(run, each), delay_s, lambda: self._begin_second(excluded)
            )
        finally:
            prompt_tokens = self._request.errand.work.prefill_tokens
            self._forwarding.hedger.ended(race, prompt_tokens)

    def _begin_second(self, excluded: set[str]) -> tuple[Attempt, Account] | None:
        """A second attempt where there is room, a retry in the budget, and its worst case held."""
        forwarding, errand = self._forwarding, self._request.errand
        reserve = self._request.borne_account
        assert reserve is not None, "only requests that may be hedged get here"
        now_s = forwarding.clock.monotonic_s()
        try:
            lease = forwarding.picker.lease(errand.pools, errand.work, now_s, excluded)
        except Unavailable:
            return None
        account = None
        if forwarding.retries.withdraw(now_s):
            with suppress(HeadraceError):
                account = reserve(hedge_suffix)
        if account is None:
            lease.release()
            return None
        excluded.add(lease.endpoint.spec.id)
        return self._begin(lease, account.reservation.request_id), account

    def _claim(self, attempt: Attempt) -> None:
        """The attempt has its first byte; ends it here if another one had its own before."""
        attempt.has_output = True
        if self._race is not None:
            self._race.claim(attempt)
            if attempt is not self._counted:
                self._account.restart()
                self._count(attempt)

    async def _lease(self, excluded: set[str]) -> Lease:
        """A place at an endpoint: the first one in the request's turn, others at once.

        A retry had its turn already, and the retry budget bounds what it adds to full ones."""
        errand, forwarding = self._request.errand, self._forwarding
        if not self.attempts:
            lease = await forwarding.room.lease(errand)
            self._turn_tokens = lease.turn_tokens
            return lease
        now_s = forwarding.clock.monotonic_s()
        return forwarding.picker.lease(
            errand.pools,
            errand.work,
            now_s,
            excluded,
            over_capacity=True,
            tries_ejected=errand.tries_ejected,
        )

    def _is_worth_another(self, error: HeadraceError, excluded: set[str]) -> bool:
        """Whether another endpoint may be tried; takes from the budget if so."""
        return (
            not self._account.has_answered
            and error.retryable
            and not isinstance(error, DeadlineExceeded)  # the time is spent
            and self.attempts < attempts_max
            and self._forwarding.picker.has_others(self._request.errand.pools, excluded)
            and self._forwarding.retries.withdraw(self._forwarding.clock.monotonic_s())
        )

    def _settle_turn(self) -> None:
        """The request ended: what it was charged for its turn and did not use goes back."""
        if self._turn_tokens:
            usage = self._used or self._account.usage
            used_tokens = min(ticket_tokens_max, usage.prompt_tokens + usage.completion_tokens)
            self._forwarding.room.settle(self._request.errand, self._turn_tokens, used_tokens)
