"""An endpoint: the address of a replica and the live load that this router put on it."""

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b

from headrace.router.adapters_loaded import LoadedAdapters
from headrace.router.breaker import Breaker, closed
from headrace.router.capacity import Capacity
from headrace.router.service_rate import ServiceRate
from headrace.spec.hedging import Hedging
from headrace.spec.models import ChatFormat

kv_tokens_prior = 131_072  # of an engine that does not tell
kv_pressure_s = 0.15  # of k / (1 - k), as in sglang's least_load
kv_share_max = 0.95  # beyond it the barrier would be infinite
answer_tokens_held = 128.0  # half of a typical answer: what a request holds of KV on average


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """What the store says of a replica that can be sent requests, or could until now."""

    id: str  # of the replica
    pool: str  # the model version that it serves
    address: str  # base URL
    accepts_requests: bool = True  # False: loading, draining or failed
    engine: str = "headrace"  # an adapter's name
    engine_key: str = field(default="", repr=False)  # the engine's credential
    served_model_name: str = ""  # what the engine calls the model
    deployment_id: str = ""  # its endpoints run on like devices
    generation: int = 1  # of the deployment
    region: str = ""  # empty: everywhere is equally near
    zone: str = ""
    kv_tokens: int = 0  # room for KV; 0: not known
    cohort: str = ""  # of a canary: old or new; empty: no split
    cohort_weight: int = 0  # its share of the pool's requests against the other cohorts
    hedging: Hedging | None = None  # when its requests go to a second replica too
    takes_images: bool = False
    chat_format: ChatFormat | None = field(default=None, repr=False)  # declared of its model
    runs_to_its_end: bool = False  # and bills all of it, though the caller left
    loras: tuple[str, ...] = ()  # adapters that it was started with, in their order
    role: str = ""  # prefill: computes prompts for those that answer; see `split`
    is_half: bool = False  # it does its role's part; each request needs another for the rest
    peer_port: int = 0  # where those reach it; 0: as its engine chooses
    split_tokens: int = 0  # a prompt with more that it lacks may be computed elsewhere; 0: never

    @property
    def answers(self) -> bool:
        """Whether requests may go there as a whole: not only for their prompts."""
        return self.accepts_requests and self.role != "prefill"

    def is_same_process(self, other: "EndpointSpec") -> bool:
        """Whether load and health of one hold for the other; a relaunch gets a new key."""
        return (self.id, self.address, self.engine_key) == (
            other.id,
            other.address,
            other.engine_key,
        )


def name_hash(name: str) -> int:
    """64 bits of a name, the same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


class PoolLoad:
    """What the endpoints of one pool say of themselves together, so that a choice asks none.

    Each keeps its own part up with every change."""

    __slots__ = ("impaired", "pressures_s", "queued_tokens", "requests")

    def __init__(self) -> None:
        self.impaired: set[Endpoint] = set()  # full or ejected
        # by slot; side by side, as a thousand are read at once
        self.queued_tokens = array("d")  # of prompts, in no seconds: their speed is being learnt
        self.pressures_s = array("d")
        self.requests = array("d")  # in flight


class Endpoint:
    """A replica's process as the router sees it. Only leases change its load."""

    __slots__ = (
        "_is_impaired",
        "adapters",
        "breaker",
        "capacity",
        "first_token_s",
        "held_fresh_tokens",
        "in_flight_requests",
        "in_flight_tokens",
        "kv_tokens",
        "leases_total",
        "name_hash",
        "pool_load",
        "pressure_s",
        "queued_prefill_tokens",
        "rate",
        "slot",
        "spec",
    )

    def __init__(
        self,
        spec: EndpointSpec,
        *,
        slot: int = 0,
        rate: ServiceRate | None = None,
        pool_load: PoolLoad | None = None,
    ) -> None:
        """`rate` is its deployment's, `pool_load` its pool's; both are shared."""
        self.take(spec)
        self.name_hash = name_hash(spec.id)
        self.slot = slot  # its place in the pool's prefix index
        self.rate = rate or ServiceRate()
        self.breaker = Breaker()
        self.capacity = Capacity()
        self.adapters = LoadedAdapters()
        self.in_flight_tokens = 0  # prompt tokens not known to be computed, and output to come
        self.in_flight_requests = 0
        self.leases_total = 0  # ever taken here
        self.queued_prefill_tokens = 0  # sent and not computed, without what its cache should have
        self.held_fresh_tokens = 0  # the same, until their requests end: KV that they need
        self.pressure_s = 0.0  # what KV in use costs, in seconds
        self.first_token_s = 0.0  # when the last prompt was done
        self.pool_load = PoolLoad()
        self._is_impaired = False  # as its pool's load has it
        self.join(pool_load or self.pool_load)

    def take(self, spec: EndpointSpec) -> None:
        """Be what the store says now of the same process."""
        self.spec = spec
        self.kv_tokens = spec.kv_tokens  # beside the load, with which it is asked for

    def is_available(self, now_s: float) -> bool:
        """Whether a request may go there now."""
        return self.spec.accepts_requests and self.breaker.permits(now_s)

    def is_full(self) -> bool:
        """Whether more requests would only wait inside it."""
        return self.in_flight_requests >= self.capacity.requests_max

    def kv_share(self, more_tokens: int = 0) -> float:
        """The share of its KV that its requests hold, by estimate; bounded below one."""
        held = self.held_fresh_tokens + self.in_flight_requests * answer_tokens_held + more_tokens
        share = held / (self.kv_tokens or kv_tokens_prior)
        return share if share < kv_share_max else kv_share_max

    def follow(self) -> None:
        """Keep up with a change of load or health; leases call it, twice a request."""
        requests = self.in_flight_requests
        held = self.held_fresh_tokens + requests * answer_tokens_held
        share = held / (self.kv_tokens or kv_tokens_prior)  # `kv_share`, without a call
        share = share if share < kv_share_max else kv_share_max
        self.pressure_s = pressure_s = kv_pressure_s * share / (1.0 - share)
        load, slot = self.pool_load, self.slot
        load.queued_tokens[slot] = self.queued_prefill_tokens
        load.pressures_s[slot] = pressure_s
        load.requests[slot] = requests
        is_impaired = requests >= self.capacity.requests_max or self.breaker.state is not closed
        if is_impaired is not self._is_impaired:
            self._turn(is_impaired=is_impaired)

    def follow_queue(self) -> None:
        """The same where only the prompts that are queued changed."""
        self.pool_load.queued_tokens[self.slot] = self.queued_prefill_tokens

    def follow_health(self) -> None:
        """Be among the impaired ones, or not."""
        is_impaired = self.is_full() or self.breaker.state is not closed
        if is_impaired is not self._is_impaired:
            self._turn(is_impaired=is_impaired)

    def _turn(self, *, is_impaired: bool) -> None:
        self._is_impaired = is_impaired
        if is_impaired:
            self.pool_load.impaired.add(self)
        else:
            self.pool_load.impaired.discard(self)

    def join(self, pool_load: PoolLoad) -> None:
        """Be counted there, and where it was before no more."""
        self.pool_load.impaired.discard(self)
        self._is_impaired = False
        self.pool_load = pool_load
        missing = [0.0] * (self.slot + 1 - len(pool_load.requests))
        pool_load.queued_tokens.extend(missing)
        pool_load.pressures_s.extend(missing)
        pool_load.requests.extend(missing)
        self.follow()

    def report_load(self, *, running: int, waiting: int, now_s: float) -> None:
        """Its engine says so: learn how many requests it should have."""
        self.capacity.observe(
            running=running,
            waiting=waiting,
            in_flight=self.in_flight_requests,
            queue_s=self.queued_prefill_tokens * self.rate.seconds_per_token,
            now_s=now_s,
        )
        self.follow_health()

    def report_nothing(self) -> None:
        """Its engine does not say: it is not limited here."""
        self.capacity.forget()
        self.follow_health()
