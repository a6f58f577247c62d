"""The money side of one gateway: admission, the meter, and the thread that ships the journal."""

import asyncio
import threading
from functools import partial

from headrace.base.clock import Clock
from headrace.base.loops import LoopKeeper
from headrace.gateway.config import GatewayConfig
from headrace.gateway.ledger_lag import WatchedPoster
from headrace.gateway.limit_headers import rolling_periods_s
from headrace.gateway.recovery import usage_of_cut_requests
from headrace.gateway.shared import SharedBooks
from headrace.gateway.snapshot import Snapshot
from headrace.http.client import HttpClient
from headrace.ledger.admission import Admission
from headrace.ledger.history import read_history
from headrace.ledger.journal import Journal
from headrace.ledger.lease_keeper import LeaseKeeper
from headrace.ledger.meter import Meter
from headrace.ledger.poster import BatchPoster, Poster
from headrace.ledger.reservation import Settlement
from headrace.ledger.shipper import Shipper
from headrace.storage import Database
from headrace.storage.lease_exchange import SharedLimits


class Bookkeeping:
    """Recovered, then started, then closed."""

    def __init__(
        self,
        database: Database,
        journal: Journal,
        config: GatewayConfig,
        clock: Clock,
        loops: LoopKeeper,
        *,
        poster: Poster | None,
        limits: SharedLimits | None,
    ) -> None:
        self._database = database
        self._journal = journal
        self._shared = limits and SharedBooks(
            limits=limits,
            database=database,
            journal=journal,
            clock=clock,
            unpriced=config.unpriced,
            when_away=config.when_limits_away,
        )
        self.admission = (
            self._shared.admission if self._shared else Admission(clock, unpriced=config.unpriced)
        )
        self.meter = Meter(self.admission, journal)
        self.lag = WatchedPoster(
            poster or BatchPoster(journal.directory, database.ledger), journal, clock
        )
        shipper = Shipper(journal, database.ledger, self.admission, self.lag, clock)
        self._stop_shipping = threading.Event()
        ship = partial(shipper.run, self._stop_shipping)
        self._shipping = threading.Thread(
            target=loops.keep_here,
            args=("journal_shipper", ship, self._stop_shipping),
            name="headrace-shipper",
        )

    @property
    def keeper(self) -> LeaseKeeper | None:
        """Who keeps the leases, if several gateways share limits; whoever starts it runs it."""
        return self._shared.keeper if self._shared else None

    async def recover(self, snapshot: Snapshot, client: HttpClient) -> list[Settlement]:
        """Take what the ledger has, and settle what a crash left running; those are returned."""
        known_usage = await usage_of_cut_requests(self._journal.running(), snapshot, client)
        balances = await asyncio.to_thread(self._database.ledger.snapshot)
        if self._shared:
            await self._shared.begin(balances)
        history = await asyncio.to_thread(
            read_history,
            self._database.ledger,
            self.admission.time_s(),
            rolling_periods_s(snapshot),
        )
        return await asyncio.to_thread(self.meter.recover, balances, known_usage, history)

    def start(self) -> None:
        """Ship from now on."""
        self._shipping.start()

    async def close(self) -> None:
        """Give the leases back and ship the rest; nothing may be admitted any more."""
        if self._shared:
            await self._shared.keeper.close()
        self._stop_shipping.set()
        await asyncio.to_thread(self._shipping.join)
