"""One open database: the two stores in it."""

from headrace.base.clock import Clock
from headrace.storage.ledger_store import LedgerStore
from headrace.storage.sessions import Sessions
from headrace.storage.store import Store


class Database:
    """Everything headrace keeps; open it with `storage.open_sqlite`."""

    def __init__(self, sessions: Sessions, clock: Clock) -> None:
        self._sessions = sessions
        self.store = Store(sessions)
        self.ledger = LedgerStore(sessions, clock)

    def close(self) -> None:
        """Give back every connection; the stores are of no use afterwards."""
        self._sessions.engine.dispose()
