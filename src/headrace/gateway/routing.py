"""How one gateway finds where a request goes, and the tasks that keep what it knows fresh."""

import random

from headrace.base.clock import Clock
from headrace.base.loops import Loop
from headrace.gateway.cache_follower import CacheFollower
from headrace.gateway.config import GatewayConfig
from headrace.gateway.contexts import ContextLengths
from headrace.gateway.follower import SnapshotFollower
from headrace.gateway.kv_subscriber import KvSubscriber
from headrace.gateway.load_follower import LoadFollower
from headrace.gateway.prefix_learner import PrefixLearner
from headrace.gateway.waiting_room import WaitingRoom
from headrace.http.client import HttpClient
from headrace.router.candidates import Place
from headrace.router.decision_log import DecisionLog
from headrace.router.endpoint_set import EndpointSet
from headrace.router.picker import Picker
from headrace.router.policies import policies
from headrace.router.split import Splitter
from headrace.spec.prefix_key import prefix_cache_key
from headrace.storage import Database


class Routing:
    """The endpoints, and who chooses among them and watches them."""

    def __init__(
        self, database: Database, client: HttpClient, config: GatewayConfig, clock: Clock
    ) -> None:
        self.endpoints = EndpointSet()
        self.follower = SnapshotFollower(
            database.store, self.endpoints, clock, config.pepper, database.changes()
        )
        rng, log = random.SystemRandom(), DecisionLog()
        self.picker = Picker(
            self.endpoints,
            rng,
            policies[config.routing_policy](rng),
            place=Place(config.region, config.zone),
            log=log,
        )
        self.splitter = Splitter(self.endpoints, log)
        self.room = WaitingRoom(self.picker, clock, refresh=self.follower.refresh)
        self.contexts = ContextLengths(self.endpoints, client)
        self.loads = LoadFollower(self.endpoints, client, self.room, clock)
        self._caches = CacheFollower(self.endpoints, client, clock)
        prefix_key = prefix_cache_key(config.pepper)
        self._subscriber = (
            KvSubscriber(self.endpoints, clock, prefix_key, config.kv_events_offset)
            if config.kv_events_offset
            else None
        )
        self.learner = PrefixLearner(self.endpoints, client, clock, prefix_key)

    def followers(self) -> dict[str, Loop]:
        """What is to run as long as the gateway does, by name."""
        running: dict[str, Loop] = {
            "snapshot": self.follower.follow,
            "context_lengths": self.contexts.follow,
            "engine_loads": self.loads.follow,
            "engine_caches": self._caches.follow,
        }
        if self._subscriber is not None:
            running["kv_events"] = self._subscriber.follow
        return running
