"""How a router prefers one endpoint to another: a cost for each, the least of which is chosen.

    round-robin      each in turn
    least-requests   the fewest requests of this router
    two-choices      the less loaded of two that were drawn (Mitzenmacher 2001)
    least-tokens     the fewest tokens in flight
    prefix-affinity  the longest prefix, whatever the load
    least-work       the least seconds that the request itself waits
    least-harm       the least seconds that it costs everybody; the default (`cost_policy`)

A policy sees only endpoints that may be used; filters, ties and leases are the picker's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headrace.router.alike import Alike
from headrace.router.by_slot import Costs, TokensBySlot, as_list, costs_of
from headrace.router.endpoint import Endpoint
from headrace.router.lease import Work
from headrace.router.rng import Rng

Terms = Mapping[str, float]  # parts of a cost by what causes them


class RoutingPolicy(Protocol):
    """Prefers endpoints."""

    @property
    def name(self) -> str:
        """What settings and explanations call it."""
        ...

    @property
    def needs_prefixes(self) -> bool:
        """Whether it asks how much of a prompt each endpoint has."""
        ...

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """The cost of each endpoint; `matched` are tokens by slot, empty if none are needed."""
        ...

    def terms(
        self,
        endpoints: Sequence[Endpoint],
        places: Sequence[int],
        work: Work,
        matched: TokensBySlot,
    ) -> list[Terms]:
        """What the costs of those at `places` are made of, for people."""
        ...


class RoundRobin:
    """Each in turn, by pool."""

    name = "round-robin"
    needs_prefixes = False

    def __init__(self) -> None:
        self._turn = 0

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """How many come before it."""
        count = len(endpoints)
        turn = self._turn
        self._turn += 1
        return [float((position - turn) % count) for position in range(count)]

    def terms(
        self,
        endpoints: Sequence[Endpoint],
        places: Sequence[int],
        work: Work,
        matched: TokensBySlot,
    ) -> list[Terms]:
        """Nothing but the turn."""
        return [{} for _ in places]


class LeastRequests:
    """The fewest requests of this router."""

    name = "least-requests"
    needs_prefixes = False

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """Requests in flight."""
        return [float(endpoint.in_flight_requests) for endpoint in endpoints]

    def terms(
        self,
        endpoints: Sequence[Endpoint],
        places: Sequence[int],
        work: Work,
        matched: TokensBySlot,
    ) -> list[Terms]:
        """Requests in flight."""
        return [{"requests": float(endpoints[at].in_flight_requests)} for at in places]


class TwoChoices(LeastRequests):
    """The less loaded of two that were drawn; the others cost infinitely much."""

    name = "two-choices"

    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """Requests in flight of two of them."""
        count = len(endpoints)
        costs = [math.inf] * count
        first = int(self._rng.random() * count)
        second = (first + 1 + int(self._rng.random() * (count - 1))) % count
        for drawn in (first, second):
            costs[drawn] = float(endpoints[drawn].in_flight_requests)
        return costs


class LeastTokens:
    """The fewest tokens in flight."""

    name = "least-tokens"
    needs_prefixes = False

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """Tokens in flight."""
        return [float(endpoint.in_flight_tokens) for endpoint in endpoints]

    def terms(
        self,
        endpoints: Sequence[Endpoint],
        places: Sequence[int],
        work: Work,
        matched: TokensBySlot,
    ) -> list[Terms]:
        """Tokens in flight."""
        return [{"tokens": float(endpoints[at].in_flight_tokens)} for at in places]


class PrefixAffinity:
    """The longest known prefix, whatever the load."""

    name = "prefix-affinity"
    needs_prefixes = True

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """Tokens that it would have to compute."""
        if isinstance(endpoints, Alike):
            return costs_of(work.prefill_tokens, endpoints.tokens(matched))
        tokens = as_list(matched)
        return [float(work.prefill_tokens - tokens[endpoint.slot]) for endpoint in endpoints]

    def terms(
        self,
        endpoints: Sequence[Endpoint],
        places: Sequence[int],
        work: Work,
        matched: TokensBySlot,
    ) -> list[Terms]:
        """Tokens that it would have to compute."""
        fresh = costs_of(work.prefill_tokens, matched)
        return [{"fresh_tokens": float(fresh[endpoints[at].slot])} for at in places]


PolicyFactory = Callable[[Rng], RoutingPolicy]
