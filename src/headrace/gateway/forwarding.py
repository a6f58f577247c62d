"""What requests share on their way to engines, and what an engine is asked, whichever it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.gateway.account import Account
from headrace.gateway.borne import BorneAttempts
from headrace.gateway.draining import Drains
from headrace.gateway.hedging import Hedger
from headrace.gateway.metering import Metering
from headrace.gateway.metrics import GatewayCounters
from headrace.gateway.signals import TrafficCounts
from headrace.gateway.waiting_room import Errand, WaitingRoom
from headrace.http.client import HttpClient
from headrace.http.connection import SizedBody
from headrace.observability.tracing import RequestTrace
from headrace.router.endpoint import EndpointSpec
from headrace.router.picker import Picker
from headrace.router.retry_budget import RetryBudget
from headrace.router.split import Splitter

headers_grace_default_s = 0.05


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an engine may be silent, and how long before its client is told to wait."""

    first_output_s: float = 600.0  # the queue and a long prompt on a slow machine
    stall_s: float = 120.0  # between chunks
    headers_grace_s: float = headers_grace_default_s  # before a stream's headers
    whole_s: float = 1800.0  # for an unstreamed answer, which shows no sign of life before its end


@dataclass(frozen=True, slots=True)
class Forwarding:
    """What every request shares on its way."""

    client: HttpClient
    picker: Picker
    room: WaitingRoom
    retries: RetryBudget
    clock: Clock
    timeouts: Timeouts
    counters: GatewayCounters
    traffic: TrafficCounts
    hedger: Hedger
    borne: BorneAttempts
    splitter: Splitter
    drains: Drains


Body = bytes | SizedBody  # bytes are JSON


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What an engine is asked, whichever it is."""

    path: str
    request_id: str
    errand: Errand
    cache_salt: str
    answer_name: str  # of the model, as the caller knows it
    body_for: Callable[[EndpointSpec, Mapping[str, object]], Body]  # with the adapter's fields
    streams: bool = False
    usage_chunk: bool = False  # what the caller wants of a stream's usage
    usage_in_every_chunk: bool = False
    metering: Metering = Metering.GENERATES
    trace: RequestTrace | None = None
    may_split: Callable[[], bool] | None = None  # its prompt may be computed elsewhere; None: no
    # Reserves for what the platform bears of it, by what its name ends with; None: nothing is.
    borne_account: Callable[[str], Account] | None = None
