"""Carries settlements from the journal to the ledger: at least once there, exactly once at rest.

The ledger keeps the journal's cursor in the same transaction as the settlements, and books a
request id once for ever. So a batch may be posted again after any crash, and starting from the
oldest segment is always right. Nothing leaves the journal before it is committed.
"""

import logging
import threading

from headrace.base.absence import Absence
from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import HeadraceError
from headrace.ledger.admission import Admission
from headrace.ledger.journal import Journal
from headrace.ledger.poster import BatchPoster, LedgerSink, Poster
from headrace.storage import LedgerSnapshot

interval_s = 0.5  # between passes, unless the last batch was full
backoff_s_min = 0.5
backoff_s_max = 30.0

log = logging.getLogger(__name__)


class Shipper:
    """One journal's way into the ledger, and the balances' way back to admission."""

    def __init__(
        self,
        journal: Journal,
        ledger: LedgerSink,
        admission: Admission,
        poster: Poster | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Without a `poster` the batches are posted to `ledger` by the caller's thread. The
        `clock` is for how long the ledger is away; None: the machine's."""
        self._away = Absence(
            log,
            clock or SystemClock(),
            "settlements wait for the ledger",
            "the ledger takes settlements again",
        )
        self._journal = journal
        self._ledger = ledger
        self._admission = admission
        self._poster = poster or BatchPoster(journal.directory, ledger)
        self._is_behind = False  # the last batch was full, so that more may wait
        # Of the last pass; None: it went well.
        self.last_error: HeadraceError | OSError | None = None

    def ship_once(self) -> int:
        """Post one batch, refresh the balances, drop what is not needed; records passed.

        Raises what the ledger or the disk raises; the same batch is posted the next time."""
        journal = self._journal
        posted = self._poster.post(journal.journal_id, journal.durable_sequence)
        self._is_behind = posted.is_behind
        self._take(posted.snapshot)
        journal.trim(self._admission.releasable_sequence(posted.sequence))
        return posted.passed

    def refresh(self) -> None:
        """Give admission the ledger's balances of now."""
        self._take(self._ledger.snapshot())

    def _take(self, snapshot: LedgerSnapshot) -> None:
        self._admission.load(
            snapshot.balances_nanousd,
            snapshot.sequences.get(self._journal.journal_id, 0),
            snapshot.totals_nanousd,
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
                self._away.note(error)
                self.last_error = error
                delay_s = min(backoff_s_max, max(backoff_s_min, delay_s * 2))
            else:
                self._away.end()
                self.last_error = None
                # A transaction for each few requests would cost the gateway more than they do.
                delay_s = 0.0 if self._is_behind else interval_s
        try:
            self.drain()
        except (HeadraceError, OSError) as error:
            self.last_error = error
