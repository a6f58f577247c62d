"""The lag that is shown is what the ledger really lacks, and how old that is at most."""

from pathlib import Path

import pytest

from headrace.base.errors import Unavailable
from headrace.gateway.ledger_lag import WatchedPoster
from headrace.ledger.journal import Journal
from headrace.ledger.poster import Posted
from headrace.ledger.reservation import Checkpoint, TokenUsage
from headrace.sim.clock import ManualClock
from headrace.storage import LedgerSnapshot


class Ledger:
    """A poster that works, or is away."""

    is_away = False

    def post(self, journal_id: str, durable_sequence: int) -> Posted:
        if self.is_away:
            raise Unavailable("the database is away")
        return Posted(0, durable_sequence, False, LedgerSnapshot({}, {}, {}))

    def close(self) -> None:
        """Nothing is held."""


def test_lag_grows_while_the_ledger_is_away_and_ends_with_it(tmp_path: Path) -> None:
    clock, ledger, journal = ManualClock(), Ledger(), Journal(tmp_path / "journal")
    watched = WatchedPoster(ledger, journal, clock)
    assert (watched.unposted_records(), watched.oldest_unposted_s()) == (0, 0.0)
    ledger.is_away = True
    sequence = journal.append(Checkpoint("req_1", TokenUsage()))
    clock.advance(30.0)
    with pytest.raises(Unavailable):
        watched.post("journal", sequence)
    assert (watched.unposted_records(), watched.oldest_unposted_s()) == (1, 30.0)
    ledger.is_away = False
    watched.post("journal", sequence)
    assert (watched.unposted_records(), watched.oldest_unposted_s()) == (0, 0.0)
    journal.close()
