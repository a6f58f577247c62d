"""A whole gateway: composed, recovered, followed, and closed in the right order."""

import asyncio
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from headrace.base.clock import Clock
from headrace.base.ids import new_id
from headrace.gateway.access_log import AccessLog
from headrace.gateway.app import GatewayApp
from headrace.gateway.asked import openai_apis
from headrace.gateway.batch_runner import BatchRunner
from headrace.gateway.batches import BatchRoutes
from headrace.gateway.cache_follower import CacheFollower
from headrace.gateway.content_store import ContentStore
from headrace.gateway.contexts import ContextLengths
from headrace.gateway.files import FileRoutes, FileStore
from headrace.gateway.follower import SnapshotFollower
from headrace.gateway.forwarding import Forwarding, Timeouts
from headrace.gateway.generate import GenerationServices
from headrace.gateway.hedging import Hedger
from headrace.gateway.idempotency import Replays
from headrace.gateway.images import ImageFetcher
from headrace.gateway.inside import InsideRequests
from headrace.gateway.kv_subscriber import KvSubscriber
from headrace.gateway.ledger_lag import WatchedPoster
from headrace.gateway.limit_headers import rolling_periods_s
from headrace.gateway.load_follower import LoadFollower
from headrace.gateway.messages_api import messages_apis
from headrace.gateway.metrics import GatewayCounters
from headrace.gateway.prefix_learner import PrefixLearner
from headrace.gateway.prompt_api import reading_apis
from headrace.gateway.recovery import usage_of_cut_requests
from headrace.gateway.responses_api import ResponsesApi
from headrace.gateway.shared import SharedBooks
from headrace.gateway.signals import TrafficCounts
from headrace.gateway.state import GatewayState
from headrace.gateway.token_counter import TokenCounter
from headrace.gateway.waiting_room import WaitingRoom
from headrace.http.client import HttpClient
from headrace.http.egress import EgressClient, EgressPolicy, no_hosts_allowed
from headrace.http.tls import Certificate
from headrace.ledger.admission import Admission, UnpricedPolicy
from headrace.ledger.history import read_history
from headrace.ledger.journal import Journal
from headrace.ledger.lease_keeper import WhenAway
from headrace.ledger.meter import Meter
from headrace.ledger.poster import BatchPoster, Poster
from headrace.ledger.reservation import Settlement
from headrace.ledger.shipper import Shipper
from headrace.observability.tracing import Tracer
from headrace.router.candidates import Place
from headrace.router.decision_log import DecisionLog
from headrace.router.endpoint_set import EndpointSet
from headrace.router.picker import Picker
from headrace.router.policies import default_policy, policies
from headrace.router.retry_budget import RetryBudget
from headrace.spec.prefix_key import prefix_cache_key
from headrace.storage import Database
from headrace.storage.lease_exchange import SharedLimits


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What a gateway is told from outside."""

    pepper: bytes
    unpriced: UnpricedPolicy = UnpricedPolicy.UNRATED
    timeouts: Timeouts = field(default_factory=Timeouts)
    content_directory: Path | None = None  # of files, batches and responses; None: not offered
    routing_policy: str = default_policy  # a name of `router.policies`
    region: str = ""  # where it is; replicas there go first
    zone: str = ""
    kv_events_offset: int = 0  # from an engine's port to that of its KV events; 0: none publishes
    certificate: Certificate | None = None  # of the TLS listener; its expiry is a metric
    when_limits_away: WhenAway = WhenAway.SPEND_LEASES  # of limits that gateways share
    egress: EgressPolicy = no_hosts_allowed  # where images that callers name may lie
    tracer: Tracer | None = None  # of whoever made it, who closes it; None: nothing is traced


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
        self._database = database
        self._journal = journal
        self._clock = clock
        self._shared = limits and SharedBooks(
            limits=limits,
            database=database,
            journal=journal,
            clock=clock,
            unpriced=config.unpriced,
            when_away=config.when_limits_away,
        )
        self._admission = (
            self._shared.admission if self._shared else Admission(clock, unpriced=config.unpriced)
        )
        lag = WatchedPoster(
            poster or BatchPoster(journal.directory, database.ledger), journal, clock
        )
        self._shipper = Shipper(journal, database.ledger, self._admission, lag)
        self._stop_shipping = threading.Event()
        self._shipping = threading.Thread(
            target=self._shipper.run, args=(self._stop_shipping,), name="headrace-shipper"
        )
        self._meter = Meter(self._admission, journal, clock)
        self._client = HttpClient()
        self._egress = EgressClient(config.egress)
        self.endpoints = EndpointSet()
        counters = GatewayCounters()
        self._hedger = Hedger(self._client, counters)
        self.retries = RetryBudget(clock.monotonic_s())
        self.follower = SnapshotFollower(database.store, self.endpoints, clock)
        self._contexts = ContextLengths(self.endpoints, self._client)
        self.access_log = AccessLog(access_log)
        self.replays = Replays(clock)
        self._tasks: list[asyncio.Task[None]] = []
        self.recovered: list[Settlement] = []  # requests that an earlier crash left running
        rng = random.SystemRandom()
        self.picker = picker = Picker(
            self.endpoints,
            rng,
            policies[config.routing_policy](rng),
            place=Place(config.region, config.zone),
            log=DecisionLog(),
        )
        self.room = room = WaitingRoom(picker, clock, refresh=self.follower.refresh)
        self.loads = LoadFollower(self.endpoints, self._client, room)
        self.caches = CacheFollower(self.endpoints, self._client, clock)
        prefix_key = prefix_cache_key(config.pepper)
        self._subscriber = (
            KvSubscriber(self.endpoints, clock, prefix_key, config.kv_events_offset)
            if config.kv_events_offset
            else None
        )
        self._learner = PrefixLearner(self.endpoints, self._client, clock, prefix_key)
        forwarding = Forwarding(
            client=self._client,
            picker=picker,
            room=room,
            retries=self.retries,
            clock=clock,
            timeouts=config.timeouts,
            counters=counters,
            traffic=TrafficCounts(new_id("gwy", clock)),
            hedger=self._hedger,
        )
        services = GenerationServices(
            meter=self._meter,
            admission=self._admission,
            forwarding=forwarding,
            contexts=self._contexts,
            counters=counters,
            clock=clock,
            pepper=config.pepper,
            images=ImageFetcher(self._egress),
            counter=TokenCounter(self.endpoints, self._client),
            learner=self._learner,
            leases=self._shared.keeper if self._shared else None,
            region=config.region,
        )
        state = GatewayState(
            follower=self.follower,
            endpoints=self.endpoints,
            journal=journal,
            services=services,
            replays=self.replays,
            counters=counters,
            access_log=self.access_log,
            clock=clock,
            pepper=config.pepper,
            lag=lag,
            certificate=config.certificate,
            tracer=config.tracer,
        )
        self._batches: BatchRunner | None = None
        self.app = self._make_app(state, config.content_directory)

    def _make_app(self, state: GatewayState, directory: Path | None) -> GatewayApp:
        """The app; what must be kept for callers is offered where there is a place for it."""
        apis = [*openai_apis, *messages_apis, *reading_apis]
        if directory is None:
            return GatewayApp(state, apis)
        clock = state.clock
        responses = ResponsesApi(directory, clock)
        apis.append(responses.api)
        files = FileStore(directory, clock)
        inside = InsideRequests(state, {api.path: api for api in apis})
        store = ContentStore(directory, "batches")
        self._batches = runner = BatchRunner(store, files, inside, clock)
        more = (
            *responses.routes,
            *FileRoutes(files).routes,
            *BatchRoutes(runner, inside, clock).routes,
        )
        return GatewayApp(state, apis, more)

    async def __aenter__(self) -> "Gateway":
        """Read the store, settle what a crash left, start the shipper and the followers."""
        await self.follower.load()
        known_usage = await usage_of_cut_requests(
            self._journal.running(), self.follower.snapshot, self._client
        )
        balances = await asyncio.to_thread(self._database.ledger.snapshot)
        if self._shared:
            await self._shared.begin(balances)
        history = await asyncio.to_thread(
            read_history,
            self._database.ledger,
            self._clock.wall_s(),
            rolling_periods_s(self.follower.snapshot),
        )
        self.recovered = await asyncio.to_thread(
            self._meter.recover, balances, known_usage, history
        )
        self._shipping.start()
        self._tasks = [
            asyncio.create_task(self.follower.follow()),
            asyncio.create_task(self._contexts.follow()),
            asyncio.create_task(self.loads.follow()),
            asyncio.create_task(self.caches.follow()),
            *([asyncio.create_task(self._subscriber.follow())] if self._subscriber else []),
            *([asyncio.create_task(self._shared.keeper.run())] if self._shared else []),
            *([asyncio.create_task(self._batches.follow())] if self._batches else []),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop what was started; the shipper drains the journal once more."""
        await self.replays.close()
        await self._hedger.close()
        await self._learner.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._shared:
            await self._shared.keeper.close()
        self._stop_shipping.set()
        await asyncio.to_thread(self._shipping.join)
        await self._client.close()
        await self._egress.close()
        self.access_log.flush()
