"""The limits that several gateways share, as one of them holds them."""

import asyncio

from headrace.base.clock import Clock
from headrace.ledger.admission import UnpricedPolicy
from headrace.ledger.journal import Journal
from headrace.ledger.lease_keeper import LeaseKeeper, WhenAway
from headrace.ledger.shared_admission import SharedAdmission
from headrace.storage import Database, LedgerSnapshot
from headrace.storage.lease_exchange import SharedLimits


class SharedBooks:
    """Admission over leases, and the task that keeps them."""

    def __init__(
        self,
        *,
        limits: SharedLimits,
        database: Database,
        journal: Journal,
        clock: Clock,
        unpriced: UnpricedPolicy,
        when_away: WhenAway,
    ) -> None:
        self._limits = limits
        self._journal = journal
        self.admission = SharedAdmission(clock, journal.journal_id, unpriced=unpriced)
        self.keeper = LeaseKeeper(
            admission=self.admission,
            limits=limits,
            ledger=database.ledger,
            clock=clock,
            durable_sequence=lambda: journal.durable_sequence,
            when_away=when_away,
        )

    async def begin(self, snapshot: LedgerSnapshot) -> None:
        """Learn what is leased, before the journal is replayed; Unavailable if nobody knows."""
        journal_id = self._journal.journal_id
        standing = await asyncio.to_thread(self._limits.begin, journal_id)
        self.admission.begin(standing, snapshot.sequences.get(journal_id, 0))
