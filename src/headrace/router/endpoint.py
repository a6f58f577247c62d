"""An endpoint: the address of a replica and the live load that this router put on it."""

from dataclasses import dataclass, field

from headrace.router.breaker import Breaker
from headrace.router.capacity import Capacity


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

    def is_same_process(self, other: "EndpointSpec") -> bool:
        """Whether load and health of one hold for the other; a relaunch gets a new key."""
        return (self.id, self.address, self.engine_key) == (
            other.id,
            other.address,
            other.engine_key,
        )


class Endpoint:
    """A replica's process as the router sees it. Only leases change its load."""

    __slots__ = ("breaker", "capacity", "in_flight_requests", "in_flight_tokens", "spec")

    def __init__(self, spec: EndpointSpec) -> None:
        self.spec = spec
        self.breaker = Breaker()
        self.capacity = Capacity()
        self.in_flight_tokens = 0  # prompt tokens not known to be computed, and output to come
        self.in_flight_requests = 0

    def is_available(self, now_s: float) -> bool:
        """Whether a request may go there now."""
        return self.spec.accepts_requests and self.breaker.permits(now_s)

    def is_full(self) -> bool:
        """Whether more requests would only wait inside it."""
        return self.in_flight_requests >= self.capacity.requests_max
