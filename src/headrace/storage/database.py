"""One open database: the stores in it."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.base.clock import Clock
from headrace.storage.audit import AuditLog
from headrace.storage.cached_store import CachedStore
from headrace.storage.changes import Changes, changes_of
from headrace.storage.device_uses import DeviceUses
from headrace.storage.engine_samples import EngineSamples
from headrace.storage.events import EventStore
from headrace.storage.invoices import InvoiceStore
from headrace.storage.late_rating import LateRating
from headrace.storage.leadership import Leadership, leadership_of
from headrace.storage.learnt_loads import LearntLoads
from headrace.storage.lease_store import LeaseStore
from headrace.storage.ledger_store import LedgerStore
from headrace.storage.reconciliation_reports import ReconciliationReports
from headrace.storage.replay_claims import ReplayClaims
from headrace.storage.sessions import Sessions
from headrace.storage.settlement_rows import SettlementRows
from headrace.storage.store import Store


class Database:
    """Everything headrace keeps; open it with `storage.open_sqlite`."""

    def __init__(
        self,
        sessions: Sessions,
        clock: Clock,
        limit_sessions: Sessions | None = None,
        answer_sessions: Sessions | None = None,
    ) -> None:
        """`limit_sessions` have a lock of their own, so that no lease waits for a batch, and
        `answer_sessions`, so that none waits for a large answer."""
        self._sessions = sessions
        self.store = Store(sessions)
        self.ledger = LedgerStore(sessions, clock)
        self.settled = SettlementRows(sessions)
        self.audit = AuditLog(sessions)
        self.events = EventStore(sessions)
        self.engine_samples = EngineSamples(sessions)
        self.reconciliations = ReconciliationReports(sessions)
        self.device_uses = DeviceUses(sessions)
        self.learnt_loads = LearntLoads(sessions)
        self.replay_claims = ReplayClaims(limit_sessions or sessions, clock, answer_sessions)
        self.limits = LeaseStore(limit_sessions or sessions, clock)
        self.invoices = InvoiceStore(sessions)
        self.late_rating = LateRating(sessions)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What this thread writes in the block is committed together, or not at all."""
        with self._sessions.write():
            yield

    def cached_store(self, clock: Clock, max_age_s: float) -> CachedStore:
        """The store for loops that look all the time: its reads may be so old."""
        return CachedStore(self._sessions, clock, max_age_s)

    @property
    def is_shared(self) -> bool:
        """Whether several machines may use it."""
        return self._sessions.engine.dialect.name == "postgresql"

    def changes(self) -> Changes:
        """A new waiter for changes of the store; close it."""
        return changes_of(self._sessions, self.store.revision)

    def leadership(self) -> Leadership:
        """A new candidate for leading the control planes; release it."""
        return leadership_of(self._sessions)

    def close(self) -> None:
        """Give back every connection; the stores are of no use afterwards."""
        self._sessions.engine.dispose()
