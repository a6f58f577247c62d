"""Reserve, checkpoint, settle: admission and journal as one, which is what a gateway calls.

    reservation = meter.reserve(...)                       before anything is sent to an engine
    await meter.recorded()                                 and it will be settled, whatever comes
    meter.checkpoint(reservation, usage)                   now and then while tokens pass
    sequence = meter.settle(reservation, usage, outcome)   in `finally`
    await meter.durable(sequence)                          before the last byte goes out

One event loop calls it; only `recorded` and `durable` wait.
"""

from collections.abc import Iterable, Mapping

from headrace.base.errors import Unavailable
from headrace.ledger.admission import Admission, settle_reservation
from headrace.ledger.history import PastUse
from headrace.ledger.journal import Journal
from headrace.ledger.journal_reader import JournalReader
from headrace.ledger.replay import Running
from headrace.ledger.reservation import (
    Checkpoint,
    Outcome,
    Reservation,
    Reserve,
    Settle,
    Settlement,
    TokenUsage,
    UnitCounts,
    UsageSource,
    no_units,
    one_request,
)
from headrace.ledger.scopes import ScopeLimits, no_limits
from headrace.spec.prices import PriceVersion
from headrace.storage import LedgerSnapshot

settlements_per_read = 1_000


class Meter:
    """The money side of one gateway."""

    def __init__(self, admission: Admission, journal: Journal) -> None:
        self._admission = admission
        self._journal = journal

    def recover(
        self,
        snapshot: LedgerSnapshot,
        known_usage: Mapping[str, TokenUsage] | None = None,
        history: Iterable[PastUse] = (),
    ) -> list[Settlement]:
        """Call once before serving: take the balances, hold what they do not contain yet, and
        settle the requests that a crash left running.

        They are settled at `known_usage` by request id, where an engine that outlived the crash
        still knows it (`Journal.running` says whom to ask about), else at their last
        checkpoint. `history` is what the ledger had when the snapshot was read
        (`history.read_history`); without it limits and budgets count from now."""
        known_usage = known_usage or {}
        booked_sequence = snapshot.sequences.get(self._journal.journal_id, 0)
        if booked_sequence > self._journal.durable_sequence:
            # An old copy of the journal was put back. Under its old name its new records would
            # count as booked; under a new one all are posted, and the ledger knows its own.
            self._journal.renew_id()
            booked_sequence = 0
        self._admission.load(snapshot.balances_nanousd, booked_sequence, snapshot.totals_nanousd)
        self._admission.load_history(history)
        reader = JournalReader(self._journal.directory)
        while found := reader.read(self._journal.durable_sequence, settlements_per_read):
            for sequence, settlement in found:
                self._admission.replayed(settlement, sequence)
        recovered = [
            self._settle_crashed(running, known_usage.get(running.reservation.request_id))
            for running in self._journal.running()
        ]
        for settlement in recovered:
            self._admission.replayed(settlement, self._journal.append(Settle(settlement)))
        return recovered

    def reserve(
        self,
        *,
        request_id: str,
        tenant_id: str,
        project_id: str,
        key_id: str,
        model: str,
        price: PriceVersion | None,
        credit_floor_nanousd: int | None,
        prompt_tokens_max: int,
        output_tokens_max: int,
        limits: ScopeLimits = no_limits,
        price_percent: int = 100,
        units_max: UnitCounts = one_request,
        key_digest: str | None = None,
    ) -> Reservation:
        """Set the worst case aside and write it down; see `Admission.reserve` for refusals.

        `key_digest` names the `Idempotency-Key` that it runs under and what that asks for.
        Raises Unavailable too while the journal takes no reservations."""
        reservation = self._admission.reserve(
            request_id=request_id,
            tenant_id=tenant_id,
            project_id=project_id,
            key_id=key_id,
            model=model,
            price=price,
            credit_floor_nanousd=credit_floor_nanousd,
            prompt_tokens_max=prompt_tokens_max,
            output_tokens_max=output_tokens_max,
            limits=limits,
            price_percent=price_percent,
            units_max=units_max,
            key_digest=key_digest,
        )
        try:
            self._journal.append(Reserve(reservation))
        except Unavailable:
            self._admission.cancel(reservation)
            raise
        return reservation

    def checkpoint(self, reservation: Reservation, usage: TokenUsage) -> None:
        """Write down what a running request has used, in case this process dies."""
        self._journal.append(Checkpoint(reservation.request_id, usage))

    def settle(
        self,
        reservation: Reservation,
        usage: TokenUsage,
        outcome: Outcome,
        source: UsageSource = UsageSource.ENGINE,
        replica_id: str | None = None,
        *,
        units: UnitCounts = one_request,
        is_borne: bool = False,
    ) -> int:
        """End a request, exactly once, and return where that stands in the journal.

        `is_borne`: at the platform's expense. Conflict at the second time. Never refused by a full
        disk."""
        settlement = self._admission.settle(
            reservation, usage, outcome, source, replica_id, units=units, is_borne=is_borne
        )
        sequence = self._journal.append(Settle(settlement))
        self._admission.journaled(reservation.request_id, sequence)
        return sequence

    def _settle_crashed(self, running: Running, known: TokenUsage | None) -> Settlement:
        """Without a checkpoint nothing is known to have gone out, so its caller owes nothing."""
        return settle_reservation(
            running.reservation,
            running.usage if known is None else known,
            Outcome.FAILED,
            UsageSource.RECOVERED if known is None else UsageSource.ENGINE,
            self._admission.time_s(),
            units=no_units,
            is_borne=running.usage == TokenUsage(),
        )

    @property
    def is_recorded(self) -> bool:
        """Whether everything up to now survives this process."""
        return self._journal.is_accepted

    async def recorded(self) -> None:
        """Return when it does; see `Journal.accepted`."""
        await self._journal.accepted()

    async def durable(self, sequence: int) -> None:
        """Return when everything up to a record is on stable storage; see `Journal.durable`."""
        await self._journal.durable(sequence)
