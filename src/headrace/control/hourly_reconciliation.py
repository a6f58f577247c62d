"""Each hour what was billed is compared with what engines counted, and the report is kept.

    12:00 ── samples, settlements ── 13:00 ── `settle_delay_s` ── the report of 12:00 is made
                                                                  made again while it differs

Hours that passed while nobody led are made up for. Where one ends for a replica, at its first
sample after the hour, the next begins, so that no token is between two reports.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.control.watch_loop import look_again
from headrace.ledger.reconciliation import ReportRow, adjoining, differing_tokens, reconcile
from headrace.spec.deployments import Replica
from headrace.storage import Database
from headrace.storage.reconciliation_reports import StoredReport

hour_s = 3600.0
settle_delay_s = 300.0  # for settlements on their way, and for the next samples
kept_hours = 92 * 24
made_up_hours_max = 48  # of an outage; what is older is left out
doubted_hours = 24  # so long a report that differs without a reason is made again
look_interval_s = 60.0

log = logging.getLogger(__name__)
encode_rows = msgspec.json.Encoder().encode
decode_rows = msgspec.json.Decoder(list[ReportRow]).decode


class HourlyReconciliation:
    """Makes the reports of one platform; synchronous but for `run`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def run(self, stop: asyncio.Event, leads: Callable[[], bool]) -> None:
        """Make what is due while this control plane leads, until told to stop."""
        away = Absence(
            log, self._clock, "no reconciliation report is made", "reconciliation goes on"
        )
        await look_again(self.make_due, stop, leads, interval_s=look_interval_s, absence=away)

    def make_due(self) -> int:
        """Make the reports that are due; how many those were."""
        reports = self._database.reconciliations
        ended = (self._clock.wall_s() - settle_delay_s) // hour_s * hour_s
        last_end = reports.last_end()
        first = ended - hour_s if last_end is None else last_end
        first = max(first, ended - made_up_hours_max * hour_s)
        due = [first + n * hour_s for n in range(round((ended - first) / hour_s))]
        if due:  # once an hour
            newest = reports.newest(doubted_hours)
            due = [each.begin_time for each in newest if each.unexplained_tokens] + due
        for begin_time in due:
            reports.keep(self._make(begin_time), forget_before=ended - kept_hours * hour_s)
        return len(due)

    def _make(self, begin_time: float) -> StoredReport:
        end_time = begin_time + hour_s
        samples = self._database.engine_samples
        found = adjoining(samples.read(begin_time, end_time + settle_delay_s), end_time)
        compared = reconcile(found, samples.billed)
        replicas = {replica.id: replica for replica in self._database.store.list(Replica)}
        rows = [
            ReportRow(
                engine=known.engine if (known := replicas.get(row.replica_id)) else "",
                model=known.model_name if known else "",
                compared=row,
            )
            for row in compared
        ]
        return StoredReport(
            begin_time=begin_time,
            end_time=end_time,
            make_time=self._clock.wall_s(),
            difference_tokens=differing_tokens(compared),
            unexplained_tokens=differing_tokens(row for row in compared if not row.is_explained),
            body=encode_rows(rows),
        )
