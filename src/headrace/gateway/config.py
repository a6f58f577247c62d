"""What a gateway is told from outside."""

from dataclasses import dataclass, field
from pathlib import Path

from headrace.gateway.forwarding import Timeouts
from headrace.http.callers import Networks
from headrace.http.egress import EgressPolicy, no_hosts_allowed
from headrace.http.tls import Certificate
from headrace.ledger.admission import UnpricedPolicy
from headrace.ledger.lease_keeper import WhenAway
from headrace.observability.tracing import Tracer
from headrace.router.policies import default_policy


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything but the parts that belong to the caller."""

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
    trusted_proxies: Networks = ()  # believed about whom they forward
    egress: EgressPolicy = no_hosts_allowed  # where images that callers name may lie
    tracer: Tracer | None = None  # of whoever made it, who closes it; None: nothing is traced
