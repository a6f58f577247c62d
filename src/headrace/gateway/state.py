"""What a gateway's routes answer from."""

from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.base.loops import LoopKeeper
from headrace.gateway.access_log import AccessLog
from headrace.gateway.follower import SnapshotFollower
from headrace.gateway.idempotency import Replays
from headrace.gateway.ledger_lag import WatchedPoster
from headrace.gateway.metrics import GatewayCounters
from headrace.gateway.services import GenerationServices
from headrace.http.callers import Networks
from headrace.http.tls import Certificate
from headrace.ledger.journal import Journal
from headrace.observability.tracing import Tracer
from headrace.router.endpoint_set import EndpointSet


@dataclass(frozen=True, slots=True)
class GatewayState:
    """One gateway's parts that routes share."""

    follower: SnapshotFollower
    endpoints: EndpointSet
    journal: Journal
    services: GenerationServices
    replays: Replays
    counters: GatewayCounters
    access_log: AccessLog
    clock: Clock
    pepper: bytes
    lag: WatchedPoster
    loops: LoopKeeper
    trusted_proxies: Networks = ()
    certificate: Certificate | None = None  # of the TLS listener, where there is one
    tracer: Tracer | None = None  # None: nothing is traced
