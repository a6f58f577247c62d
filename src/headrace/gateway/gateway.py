"""A whole gateway: composed, recovered, followed, and closed in the right order."""

import asyncio
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from headrace.base.clock import Clock
from headrace.base.ids import new_id
from headrace.base.loops import LoopKeeper
from headrace.gateway.access_log import AccessLog
from headrace.gateway.app import GatewayApp
from headrace.gateway.asked import openai_apis
from headrace.gateway.batch_runner import BatchRunner
from headrace.gateway.batches import BatchRoutes
from headrace.gateway.bookkeeping import Bookkeeping
from headrace.gateway.borne import BorneAttempts
from headrace.gateway.config import GatewayConfig
from headrace.gateway.content_store import ContentStore
from headrace.gateway.draining import Drains
from headrace.gateway.files import FileRoutes, FileStore
from headrace.gateway.forwarding import Forwarding
from headrace.gateway.hedging import Hedger
from headrace.gateway.idempotency import Replays
from headrace.gateway.images import ImageFetcher
from headrace.gateway.inside import InsideRequests
from headrace.gateway.messages_api import messages_apis
from headrace.gateway.metrics import GatewayCounters
from headrace.gateway.prompt_api import reading_apis
from headrace.gateway.replay_claims import KeyClaims
from headrace.gateway.responses_api import ResponsesApi
from headrace.gateway.routing import Routing
from headrace.gateway.services import GenerationServices
from headrace.gateway.signals import TrafficCounts
from headrace.gateway.state import GatewayState
from headrace.gateway.token_counter import TokenCounter
from headrace.http.client import HttpClient
from headrace.http.egress_client import EgressClient
from headrace.ledger.journal import Journal
from headrace.ledger.poster import Poster
from headrace.ledger.reservation import Settlement
from headrace.router.retry_budget import RetryBudget
from headrace.storage import Database
from headrace.storage.lease_exchange import SharedLimits

__all__ = ["Gateway", "GatewayConfig"]


class Gateway:
    """`async with Gateway(...) as gateway`: `gateway.app` serves until the block is left.

    The database, the journal and the poster belong to the caller, and outlive it."""

    def __init__(
        self,
        database: Database,
        journal: Journal,
        config: GatewayConfig,
        clock: Clock,
        access_log: BinaryIO | None = None,
        *,
        poster: Poster | None = None,
        limits: SharedLimits | None = None,
    ) -> None:
        """Without a `poster` a thread of this process books what the journal holds. Without
        `limits`, which several gateways share, this is the only gateway."""
        self.loops = LoopKeeper(clock)
        self._client = HttpClient()
        self._egress = EgressClient(config.egress)
        self._books = Bookkeeping(
            database, journal, config, clock, self.loops, poster=poster, limits=limits
        )
        self._routing = routing = Routing(database, self._client, config, clock)
        self.endpoints, self.follower = routing.endpoints, routing.follower
        self.room, self.loads = routing.room, routing.loads
        self.access_log = AccessLog(access_log)
        self.replays = Replays(
            clock,
            KeyClaims(database.replay_claims, journal, clock, self.loops),
            config.timeouts.headers_grace_s,
        )
        self.retries = RetryBudget(clock.monotonic_s())
        self._counters = GatewayCounters()
        self._borne = BorneAttempts(self._client, self._counters)
        self._hedger = Hedger(self._borne, self._counters)
        self._drains = Drains(self._counters)
        self._tasks: list[asyncio.Task[None]] = []
        self.recovered: list[Settlement] = []  # requests that an earlier crash left running
        self._batches: BatchRunner | None = None
        self._certificate = config.certificate
        state = GatewayState(
            follower=self.follower,
            endpoints=self.endpoints,
            journal=journal,
            services=self._make_services(config, clock),
            replays=self.replays,
            counters=self._counters,
            access_log=self.access_log,
            clock=clock,
            pepper=config.pepper,
            lag=self._books.lag,
            loops=self.loops,
            trusted_proxies=config.trusted_proxies,
            certificate=config.certificate,
            tracer=config.tracer,
        )
        self.app = self._make_app(state, config.content_directory)

    def _make_services(self, config: GatewayConfig, clock: Clock) -> GenerationServices:
        """What every generating request uses."""
        routing, books = self._routing, self._books
        forwarding = Forwarding(
            client=self._client,
            picker=routing.picker,
            room=routing.room,
            retries=self.retries,
            clock=clock,
            timeouts=config.timeouts,
            counters=self._counters,
            traffic=TrafficCounts(new_id("gwy", clock), clock),
            hedger=self._hedger,
            borne=self._borne,
            splitter=routing.splitter,
            drains=self._drains,
        )
        return GenerationServices(
            meter=books.meter,
            admission=books.admission,
            forwarding=forwarding,
            contexts=routing.contexts,
            counters=self._counters,
            clock=clock,
            pepper=config.pepper,
            images=ImageFetcher(self._egress),
            counter=TokenCounter(routing.endpoints, self._client),
            learner=routing.learner,
            leases=books.keeper,
            region=config.region,
        )

    def _make_app(self, state: GatewayState, directory: Path | None) -> GatewayApp:
        """The app; what must be kept for callers is offered where there is a place for it."""
        apis = [*openai_apis, *messages_apis, *reading_apis]
        if directory is None:
            return GatewayApp(state, apis)
        clock = state.clock
        responses = ResponsesApi(directory, clock, self._counters)
        apis.append(responses.api)
        files = FileStore(directory, clock)
        inside = InsideRequests(state, {api.path: api for api in apis})
        store = ContentStore(directory, "batches")
        self._batches = runner = BatchRunner(store, files, inside, clock, self.loops)
        more = (
            *responses.routes,
            *FileRoutes(files).routes,
            *BatchRoutes(runner, inside, clock).routes,
        )
        return GatewayApp(state, apis, more)

    async def __aenter__(self) -> "Gateway":
        """Read the store, settle what a crash left, start the shipper and the followers."""
        await self.follower.load()
        self.recovered = await self._books.recover(self.follower.snapshot, self._client)
        await self.replays.recover()
        self._books.start()
        running = self._routing.followers()
        if self._books.keeper is not None:
            running["limit_leases"] = self._books.keeper.run
        if self._batches is not None:
            running["batches"] = self._batches.follow
        if self._certificate is not None:
            running["certificate"] = partial(self._certificate.follow, asyncio.Event())
        self._tasks = [self.loops.start(name, loop) for name, loop in running.items()]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop what was started; the shipper drains the journal once more."""
        await self.replays.close()
        await self._borne.close()
        await self._drains.close()
        await self._routing.learner.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._books.close()
        await self._client.close()
        await self._egress.close()
        self.access_log.flush()
