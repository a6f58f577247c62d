"""Chooses an endpoint: available and not full, then the least tokens in flight, ties at random.

A model points at pools by weight (its versions). A pool is drawn by weight among those that have
an available endpoint, so that a version without one sends its share to the others.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from headrace.base.errors import Unavailable
from headrace.router.endpoint import Endpoint
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work

retry_after_s_default = 1.0  # when nothing tells when an endpoint will be there


class Rng(Protocol):
    """Where random numbers come from."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


class Saturated(Unavailable):
    """Endpoints could take the request, and all of them are full."""


WeightedPool = tuple[str, int]  # a pool's name and its share


def least_loaded(
    endpoints: Sequence[Endpoint],
    now_s: float,
    rng: Rng,
    excluded: Collection[str] = (),
    *,
    over_capacity: bool = False,
) -> Endpoint | None:
    """The available endpoint with the least tokens in flight, or None if all are full or away."""
    chosen: Endpoint | None = None
    least_tokens = 0
    tie_count = 0
    for endpoint in endpoints:
        tokens = endpoint.in_flight_tokens
        if chosen is not None and tokens > least_tokens:
            continue  # the cheap test first: most endpoints end here
        if endpoint.is_full() and not over_capacity:
            continue
        if not endpoint.is_available(now_s) or endpoint.spec.id in excluded:
            continue
        if chosen is None or tokens < least_tokens:
            chosen, least_tokens, tie_count = endpoint, tokens, 1
            continue
        tie_count += 1
        if rng.random() * tie_count < 1:  # the n-th of n equals replaces with chance 1/n
            chosen = endpoint
    return chosen


class Picker:
    """Routes requests over an endpoint set."""

    def __init__(self, endpoints: EndpointSet, rng: Rng) -> None:
        self._endpoints = endpoints
        self._rng = rng

    def lease(
        self,
        pools: Sequence[WeightedPool],
        work: Work,
        now_s: float,
        excluded: Collection[str] = (),
        *,
        over_capacity: bool = False,
    ) -> Lease:
        """Choose an endpoint and count the request on it; `excluded` ids are not chosen.

        Saturated if those that could take it are full, which `over_capacity` ignores.
        Unavailable, with the time to wait, if no endpoint of any pool may be used."""
        left = [pool for pool in pools if pool[1] > 0]
        while left:
            drawn = self._draw(left)
            members = self._endpoints.pool(drawn[0])
            endpoint = least_loaded(
                members, now_s, self._rng, excluded, over_capacity=over_capacity
            )
            if endpoint is not None:
                return Lease(endpoint, work, now_s)
            left.remove(drawn)
        if any(self._has_available(name, now_s, excluded) for name, weight in pools if weight > 0):
            raise Saturated("every replica of this model is full; try again")
        raise Unavailable(
            "no replica of this model can take the request now; try again",
            retry_after_s=self._retry_after_s(pools, now_s),
        )

    def _has_available(self, pool: str, now_s: float, excluded: Collection[str]) -> bool:
        return any(
            endpoint.is_available(now_s) and endpoint.spec.id not in excluded
            for endpoint in self._endpoints.pool(pool)
        )

    def _draw(self, pools: Sequence[WeightedPool]) -> WeightedPool:
        if len(pools) == 1:
            return pools[0]
        point = self._rng.random() * sum(weight for _, weight in pools)
        for pool in pools:
            point -= pool[1]
            if point < 0:
                return pool
        return pools[-1]

    def _retry_after_s(self, pools: Sequence[WeightedPool], now_s: float) -> float:
        """When the first ejected endpoint may be tried again."""
        waits_s = [
            endpoint.breaker.retry_after_s(now_s)
            for name, _ in pools
            for endpoint in self._endpoints.pool(name)
            if endpoint.spec.accepts_requests
        ]
        return min(waits_s, default=0.0) or retry_after_s_default
