"""What the generating requests of a gateway share."""

from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.gateway.contexts import ContextLengths
from headrace.gateway.forwarding import Forwarding
from headrace.gateway.images import ImageFetcher
from headrace.gateway.metrics import GatewayCounters
from headrace.gateway.prefix_learner import PrefixLearner
from headrace.gateway.token_counter import TokenCounter
from headrace.ledger.admission import Admission
from headrace.ledger.lease_keeper import LeaseKeeper
from headrace.ledger.meter import Meter


@dataclass(frozen=True, slots=True)
class GenerationServices:
    """One value a gateway."""

    meter: Meter
    admission: Admission
    forwarding: Forwarding
    contexts: ContextLengths
    counters: GatewayCounters
    clock: Clock
    pepper: bytes
    images: ImageFetcher
    learner: PrefixLearner
    counter: TokenCounter | None = None  # of prompts; None: their bytes have to do
    leases: LeaseKeeper | None = None  # of limits that several gateways share
    region: str = ""  # where this gateway is
