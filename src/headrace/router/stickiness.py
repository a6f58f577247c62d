"""Which endpoint a session prefers, without remembering any session.

Every endpoint has a score for a session, a mix of both names (rendezvous hashing, Thaler and
Ravishankar 1998): all gateways agree on the order, and one endpoint less moves only its own
sessions. The best that is not loaded far above the mean is taken (bounded loads, Mirrokni et al.
2018), so that a few busy sessions do not bury one endpoint.
"""

from collections.abc import Sequence

from headrace.router.endpoint import Endpoint, name_hash

load_share_max = 1.25  # of the mean load, the published balance between stickiness and evenness
mask = (1 << 64) - 1
mix_factor = 0xBF58476D1CE4E5B9  # of splitmix64


def score(session_hash: int, endpoint_hash: int) -> int:
    """How much a session prefers an endpoint."""
    mixed = (session_hash ^ endpoint_hash) * mix_factor & mask
    return (mixed ^ (mixed >> 31)) * mix_factor & mask


def preferred(session: str, endpoints: Sequence[Endpoint]) -> Endpoint:
    """The endpoint for a session, among those that may be used, of which there is at least one."""
    session_hash = name_hash(session)
    mean = sum(endpoint.in_flight_requests for endpoint in endpoints) / len(endpoints)
    limit = load_share_max * (mean + 1)
    light = [endpoint for endpoint in endpoints if endpoint.in_flight_requests < limit]
    return max(light, key=lambda endpoint: score(session_hash, endpoint.name_hash))
