"""Posts one batch of a journal to the ledger; in this process, or the same in another one.

Booking a thousand settlements keeps Python busy for tens of milliseconds, which a process that
streams to people does not have. So whoever ships knows only this seam.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from headrace.ledger.journal_reader import JournalReader, NumberedSettlement
from headrace.ledger.reservation import Settlement
from headrace.storage import LedgerSnapshot

batch_settlements_max = 1_000  # one transaction; small enough that other writers wait little


class LedgerSink(Protocol):
    """The part of `storage.LedgerStore` that posting needs."""

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


class Posted(msgspec.Struct, frozen=True):
    """What one batch came to."""

    passed: int  # records of the journal, settlements and others
    sequence: int  # the journal's records up to here are committed
    is_behind: bool  # the batch was full, so that more may wait
    snapshot: LedgerSnapshot  # read after it


class Poster(Protocol):
    """Where a shipper's batches go."""

    def post(self, journal_id: str, durable_sequence: int) -> Posted:
        """Book the next settlements up to a sequence, with the journal's cursor.

        Raises what the ledger or the disk raises; the same batch is posted the next time."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class BatchPoster:
    """Reads a journal's segments and books what is in them; one thread uses it."""

    def __init__(self, directory: Path, ledger: LedgerSink) -> None:
        self._reader = JournalReader(directory)
        self._ledger = ledger
        self._batch: list[NumberedSettlement] | None = None  # read and not committed yet
        self._posted_sequence = 0

    def post(self, journal_id: str, durable_sequence: int) -> Posted:
        """As `Poster.post`."""
        if self._batch is None:
            self._batch = self._reader.read(durable_sequence, batch_settlements_max)
        is_behind = len(self._batch) == batch_settlements_max
        passed = self._reader.sequence - self._posted_sequence
        if passed:
            self._ledger.post(
                [settlement for _, settlement in self._batch],
                journal_id=journal_id,
                sequence=self._reader.sequence,
            )
            self._posted_sequence = self._reader.sequence
        self._batch = None
        return Posted(passed, self._posted_sequence, is_behind, self._ledger.snapshot())

    def close(self) -> None:
        """The ledger belongs to the caller."""
