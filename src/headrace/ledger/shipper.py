"""Carries settlements from the journal to the ledger: at least once there, exactly once at rest.

The ledger keeps the journal's cursor in the same transaction as the settlements, and books a
request id once for ever. So a batch may be posted again after any crash, and starting from the
oldest segment is always right. Nothing leaves the journal before it is committed.
"""

import threading
from collections.abc import Sequence
from typing import Protocol

from headrace.base.errors import HeadraceError
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal
from headrace.ledger.journal_reader import JournalReader, NumberedSettlement
from headrace.ledger.reservation import Settlement
from headrace.storage import LedgerSnapshot

batch_settlements_max = 1_000  # one transaction; small enough that other writers wait little
interval_s = 0.5  # between passes, unless the last batch was full
backoff_s_min = 0.5
backoff_s_max = 30.0


class LedgerSink(Protocol):
    """The part of `storage.LedgerStore` that shipping needs."""

    def post(
        self,
        records: Sequence[Settlement],
        *,
        journal_id: str | None = None,
        sequence: int | None = None,
    ) -> int:
        """Book settlements and the cursor together; how many were new."""
        ...

    def snapshot(self) -> LedgerSnapshot:
        """Balances, and how much of each journal they contain."""
        ...


class Shipper:
    """One journal's way into the ledger, and the balances' way back to admission."""

    def __init__(self, journal: Journal, ledger: LedgerSink, admission: Admission) -> None:
        self._journal = journal
        self._ledger = ledger
        self._admission = admission
        self._reader = JournalReader(journal.directory)
        self._batch: list[NumberedSettlement] | None = None  # read and not committed yet
        self.shipped_sequence = 0
        self.is_behind = False  # the last batch was full, so that more may wait
        # Of the last pass; None: it went well.
        self.last_error: HeadraceError | OSError | None = None

    def ship_once(self) -> int:
        """Post one batch, refresh the balances, drop what is not needed; records passed.

        Raises what the ledger or the disk raises; the same batch is posted the next time."""
        if self._batch is None:
            self._batch = self._reader.read(self._journal.durable_sequence, batch_settlements_max)
            self.is_behind = len(self._batch) == batch_settlements_max
        count = self._reader.sequence - self.shipped_sequence
        if count:
            self._ledger.post(
                [settlement for _, settlement in self._batch],
                journal_id=self._journal.journal_id,
                sequence=self._reader.sequence,
            )
            self.shipped_sequence = self._reader.sequence
        self._batch = None
        self.refresh()
        self._journal.trim(self.shipped_sequence)
        return count

    def refresh(self) -> None:
        """Give admission the ledger's balances of now."""
        snapshot = self._ledger.snapshot()
        self._admission.load(
            snapshot.balances_nanousd, snapshot.sequences.get(self._journal.journal_id, 0)
        )

    def drain(self) -> None:
        """Ship everything that is durable now."""
        while self.ship_once():
            pass

    def run(self, stop: threading.Event) -> None:
        """Ship until told to stop, slower and slower while the ledger is away.

        It tries once more to drain when it stops; what is left is shipped at the next start."""
        delay_s = 0.0
        while not stop.wait(delay_s):
            try:
                self.ship_once()
            except (HeadraceError, OSError) as error:
                self.last_error = error
                delay_s = min(backoff_s_max, max(backoff_s_min, delay_s * 2))
            else:
                self.last_error = None
                # A transaction for each few requests would cost the gateway more than they do.
                delay_s = 0.0 if self.is_behind else interval_s
        try:
            self.drain()
        except (HeadraceError, OSError) as error:
            self.last_error = error
