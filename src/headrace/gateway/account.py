"""One admitted request's money: what it has used so far, and its only settlement."""

import asyncio
from contextlib import suppress

from headrace.base.clock import Clock
from headrace.base.errors import Unavailable
from headrace.ledger.meter import Meter
from headrace.ledger.rating import is_rateable
from headrace.ledger.reservation import (
    Outcome,
    Reservation,
    TokenUsage,
    UnitCounts,
    UsageSource,
    no_units,
    one_request,
)

checkpoint_interval_s = 1.0  # at most so much use is forgotten by a crash
durable_timeout_s = 5.0  # a disk that takes longer must not hold answers that are complete


class Account:
    """Follows one reservation to its settlement, which is made exactly once."""

    __slots__ = (
        "_checkpoint_s",
        "_clock",
        "_meter",
        "has_answered",
        "outcome",
        "replica_id",
        "reservation",
        "sequence",
        "source",
        "units",
        "usage",
    )

    def __init__(
        self,
        meter: Meter,
        reservation: Reservation,
        clock: Clock,
        units: UnitCounts = one_request,
    ) -> None:
        """`units` are what it is charged for besides tokens, if an engine works for it."""
        self._meter = meter
        self._clock = clock
        self._checkpoint_s = clock.monotonic_s()
        self.reservation = reservation
        self.usage = TokenUsage()  # so far; of the present attempt only
        self.units = units
        self.source = UsageSource.COUNTED
        self.outcome: Outcome | None = None
        self.replica_id: str | None = None  # that has the present attempt
        self.has_answered = False  # something of the answer is on its way to the caller
        self.sequence = 0

    def observe(self, usage: TokenUsage) -> None:
        """Note what the request has used by now; now and then the journal learns it too."""
        self.usage = usage
        now_s = self._clock.monotonic_s()
        if now_s - self._checkpoint_s >= checkpoint_interval_s:
            self._checkpoint_s = now_s
            self._meter.checkpoint(self.reservation, usage)

    def restart(self) -> None:
        """The request starts over elsewhere: what the broken attempt used is not charged."""
        if self.usage != TokenUsage():
            self.usage = TokenUsage()
            self._meter.checkpoint(self.reservation, self.usage)

    def settle(
        self,
        outcome: Outcome,
        usage: TokenUsage | None = None,
        *,
        exact: bool = False,
        tokens_told: bool = True,
    ) -> None:
        """End the request at `usage`, or at what was observed; later calls change nothing.

        Not `tokens_told`: the engine worked, and nothing tells how many tokens it took. Such a
        request is rated where its other units are all that its price asks for. What failed before
        any of it went out is at the platform's expense: another answer may follow it."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        if usage is not None:
            self.usage = usage
        reached_nobody = exact and self.usage == TokenUsage()
        if outcome is not Outcome.FINISHED and (outcome is not Outcome.ABORTED or reached_nobody):
            self.units = no_units
        self.source = self._source(exact=exact, tokens_told=tokens_told)
        self.sequence = self._meter.settle(
            self.reservation,
            self.usage,
            outcome,
            self.source,
            self.replica_id,
            units=self.units,
            is_borne=outcome is Outcome.FAILED and not self.has_answered,
        )

    def _source(self, *, exact: bool, tokens_told: bool) -> UsageSource:
        price = self.reservation.price
        if price is None:
            is_metered = tokens_told
        else:
            is_metered = is_rateable(price.price, self.units, tokens_told=tokens_told)
        if not is_metered:
            return UsageSource.UNMETERED
        return UsageSource.ENGINE if exact else UsageSource.COUNTED

    async def recorded(self) -> None:
        """Return when what is reserved by now would be found after a crash of this process.

        Nearly always at once. Unavailable if the disk does not take it: nothing may be sent."""
        if self._meter.is_recorded:
            return
        try:
            async with asyncio.timeout(durable_timeout_s):
                await self._meter.recorded()
        except TimeoutError:
            raise Unavailable(
                "The disk that holds the journal is too slow; try again.",
                retry_after_s=durable_timeout_s,
            ) from None

    async def durable(self) -> bool:
        """Wait until the settlement is on stable storage; False if the disk does not take it.

        It is not lost then: the journal keeps it in memory and writes it when it can."""
        assert self.outcome is not None
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(durable_timeout_s):
                await self._meter.durable(self.sequence)
            return True
        return False
