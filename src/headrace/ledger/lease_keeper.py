"""Keeps one gateway's leases: asks when requests wait, reports and gives back now and then.

One exchange is under way at a time; whatever waits meanwhile goes with the next. While the store is
away a gateway spends what it has leased, or refuses, as configured; it never guesses.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial

from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, Unavailable
from headrace.ledger.reservation import UnitCounts, one_request
from headrace.ledger.scopes import ScopeId, ScopeLimits, no_limits
from headrace.ledger.shared_admission import SharedAdmission
from headrace.ledger.shared_base import LedgerReader, base_of
from headrace.ledger.shared_limiter import Lack, Left
from headrace.spec.prices import PriceVersion
from headrace.storage.lease_exchange import (
    Answers,
    Exchange,
    SharedLimits,
    lease_lifetime_s,
)

interval_s = 0.25  # between exchanges when nobody waits: what lies idle is free elsewhere by then
away_interval_s = 0.5  # between attempts while the store is away
wait_timeout_s = 5.0  # of a request, for an exchange that does not end
trusted_s = lease_lifetime_s * 0.75  # without an answer; then the store may forget what expires
waiting_max = 16_384
attempts_max = 16  # of one request, where others take what was leased for it
patience_max = 2  # intervals that a request waits for what others may give back

log = logging.getLogger(__name__)


class WhenAway(StrEnum):
    """What a gateway does while the shared store does not answer."""

    SPEND_LEASES = "spend-leases"
    REFUSE = "refuse"


class LeaseKeeper:
    """The task between a `SharedAdmission` and its store; one event loop uses it."""

    def __init__(
        self,
        *,
        admission: SharedAdmission,
        limits: SharedLimits,
        ledger: LedgerReader,
        clock: Clock,
        durable_sequence: Callable[[], int],
        when_away: WhenAway = WhenAway.SPEND_LEASES,
    ) -> None:
        """`durable_sequence` is the journal's: what it may forget in a crash is not reported as
        known, so that after one it can only count twice."""
        self._admission = admission
        self._limits = limits
        self._ledger = ledger
        self._clock = clock
        self._durable_sequence = durable_sequence
        self._when_away = when_away
        self._waiting: list[tuple[tuple[Lack, ...], asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._heard_s = clock.monotonic_s()
        self._absence = Absence(
            log, clock, "the shared limits cannot be asked", "the shared limits answer again"
        )
        self.last_error: HeadraceError | None = None

    @property
    def is_degraded(self) -> bool:
        """Whether the store did not answer the last time."""
        return self.last_error is not None

    async def prepare(
        self,
        ids: tuple[ScopeId, ...],
        limits: ScopeLimits,
        *,
        price: PriceVersion | None,
        credit_floor_nanousd: int | None,
        prompt_tokens_max: int,
        output_tokens_max: int,
        units_max: UnitCounts = one_request,
    ) -> bool:
        """Lease what a request needs; False: not all of it is there, and what is left is known.

        What was leased for one may be taken by another that came meanwhile; then it is asked for
        again. What only others' leases stand in the way of may be given back by them soon.

        Unavailable while the store is away, if what is leased does not suffice, or in any case
        where nothing may be spent without it."""
        if limits is no_limits and credit_floor_nanousd is None:
            return True
        if self.last_error is not None and self._when_away is WhenAway.REFUSE:
            raise self._away()
        lacks_now = partial(
            self._admission.lacks,
            ids,
            limits,
            price=price,
            credit_floor_nanousd=credit_floor_nanousd,
            prompt_tokens_max=prompt_tokens_max,
            output_tokens_max=output_tokens_max,
            units_max=units_max,
        )
        patience = patience_max
        for _ in range(attempts_max):
            lacks = lacks_now()
            if not lacks:
                return True
            await self._cover(lacks)
            left = self._admission.left_for(lacks_now())
            if left is Left.NOTHING or (left is Left.WITH_OTHERS and not patience):
                return False
            if left is Left.WITH_OTHERS:
                patience -= 1
                await asyncio.sleep(interval_s)
        return not lacks_now()

    async def look(
        self, ids: tuple[ScopeId, ...], limits: ScopeLimits, credit_floor_nanousd: int | None
    ) -> bool:
        """Ask what is left of what a request's answer would be cut to; whether anything came.

        False if the store told of all of it just now, or does not answer."""
        outdated = self._admission.outdated(ids, limits, credit_floor_nanousd)
        if not outdated:
            return False
        try:
            await self._cover(outdated)
        except Unavailable:
            return False
        return True

    async def close(self) -> None:
        """Give back what lies idle; call it when `run` has ended and nothing runs any more."""
        await self.exchange_once()
        await self.exchange_once()

    async def _cover(self, lacks: Iterable[Lack]) -> None:
        if self.last_error is not None:
            raise self._away()
        if len(self._waiting) >= waiting_max:
            raise Unavailable("too many requests wait for limits; try again", retry_after_s=1.0)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((tuple(lacks), answered))
        self._wake.set()
        try:
            async with asyncio.timeout(wait_timeout_s):
                await answered
        except TimeoutError:
            raise self._away() from None

    async def run(self) -> None:
        """Exchange until cancelled."""
        while True:
            delay_s = away_interval_s if self.is_degraded else interval_s
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self.exchange_once()

    async def exchange_once(self) -> None:
        """One exchange, with everybody who waits now."""
        waiting, self._waiting = self._waiting, []
        begun_s = self._clock.monotonic_s()
        if begun_s - self._heard_s > trusted_s:
            self._admission.expire()
        wanted = [lack for lacks, future in waiting if not future.done() for lack in lacks]
        said = self._admission.compose(self._durable_sequence(), wanted)
        try:
            answers = await asyncio.to_thread(self._ask, said)
        except HeadraceError as error:
            self._absence.note(error)
            self.last_error = error
            outcome: HeadraceError | None = self._away()
        else:
            self._admission.take(answers)
            self._heard_s = begun_s
            self._absence.end()
            self.last_error = outcome = None
        for _, future in waiting:
            if not future.done():
                if outcome is None:
                    future.set_result(None)
                else:
                    future.set_exception(outcome)

    def _ask(self, said: Exchange) -> Answers:
        """Exchange; where nobody has counted a limit yet, again with what the ledger knows."""
        answers = self._limits.exchange(said)
        new = {answer.key for answer in answers.answers if answer.is_new}
        if not new:
            return answers
        asks = tuple(base_of(ask, self._ledger) for ask in said.asks if ask.key in new)
        more = self._limits.exchange(self._admission.next_operation(said, asks))
        known = {answer.key: answer for answer in (*answers.answers, *more.answers)}
        return Answers(more.time_s, tuple(known.values()))

    def _away(self) -> Unavailable:
        return Unavailable(
            "the limits that the gateways share cannot be asked, and this one has not leased "
            "enough; try again",
            retry_after_s=1.0,
        )
