"""How far the ledger is behind this gateway's journal, as seen by whoever posts."""

from headrace.base.clock import Clock
from headrace.ledger.journal import Journal
from headrace.ledger.poster import Posted, Poster


class WatchedPoster:
    """A `Poster` that remembers how far it came; one thread posts, others read the figures."""

    def __init__(self, poster: Poster, journal: Journal, clock: Clock) -> None:
        self._poster = poster
        self._journal = journal
        self._clock = clock
        self._posted_sequence: int | None = None  # None: nothing was posted yet
        self._first_sequence = journal.durable_sequence
        self._caught_up_s = clock.monotonic_s()  # everything older than this is in the ledger

    def post(self, journal_id: str, durable_sequence: int) -> Posted:
        """As `Poster.post`."""
        asked_s = self._clock.monotonic_s()
        posted = self._poster.post(journal_id, durable_sequence)
        self._posted_sequence = posted.sequence
        if not posted.is_behind:
            self._caught_up_s = asked_s
        return posted

    def close(self) -> None:
        """Give back what it holds."""
        self._poster.close()

    def unposted_records(self) -> int:
        """Records of the journal that the ledger does not have yet."""
        posted = self._posted_sequence
        base = self._first_sequence if posted is None else posted
        return max(0, self._journal.status().sequence - base)

    def oldest_unposted_s(self) -> float:
        """How old the oldest of them is at most; 0 if there is none."""
        if not self.unposted_records():
            return 0.0
        return self._clock.monotonic_s() - self._caught_up_s
