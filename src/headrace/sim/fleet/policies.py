"""How else a router could choose: the policies that ours is compared with.

Those of `router.policy` and `router.cost_policy` are the real ones; here are models of others'
routers, and ours with perfect knowledge. All of them see what a gateway sees: its own leases, the
health of an endpoint, the declared limit of an answer but not its length. Under all of them but
`headrace` no endpoint is limited and no request waits in the gateway: all waiting is in the
engines. `cache-aware` is sglang's router, its threshold and imbalance rule; `scored` is llm-d's sum
of a queue, a KV and a prefix score with its default weights 2, 2, 3.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.router.by_slot import Costs, TokensBySlot, as_list
from headrace.router.cost_policy import least_harm, least_work
from headrace.router.endpoint import Endpoint
from headrace.router.lease import Work
from headrace.router.policies import policies as router_policies
from headrace.router.policy import LeastRequests, PolicyFactory, RoutingPolicy, Terms

cache_threshold = 0.5  # share of a prompt that must match, sglang's default
imbalance_absolute, imbalance_relative = 32, 1.1  # sglang's defaults
queue_weight, kv_weight, prefix_weight = 2.0, 2.0, 3.0  # llm-d's defaults

KnownTokens = Callable[[Endpoint, Work], int]  # what an engine's cache really holds of a prompt


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What a policy may be made of."""

    rng: random.Random
    known_tokens: KnownTokens


class RandomChoice:
    """Any of them."""

    name = "random"
    needs_prefixes = False

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """All the same: ties are drawn."""
        return [0.0] * len(endpoints)

    def terms(
        self,
        endpoints: Sequence[Endpoint],
        places: Sequence[int],
        work: Work,
        matched: TokensBySlot,
    ) -> list[Terms]:
        """None."""
        return [{} for _ in places]


class CacheAware(LeastRequests):
    """The one with the prefix, unless it matches too little or the fleet is out of balance."""

    name = "cache-aware"
    needs_prefixes = True

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """Fresh tokens while the rule holds, else requests."""
        counts = super().costs(endpoints, work, matched)
        least, most = min(counts), max(counts)
        is_balanced = most - least <= imbalance_absolute or most <= imbalance_relative * least
        tokens = as_list(matched)
        best = max(tokens[endpoint.slot] for endpoint in endpoints)
        if is_balanced and best > cache_threshold * work.prefill_tokens:
            return [-float(tokens[endpoint.slot]) for endpoint in endpoints]
        return counts


class Scored:
    """The highest weighted sum of scores between 0 and 1."""

    name = "scored"
    needs_prefixes = True

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """The sum, negative."""
        tokens = as_list(matched)
        queues = [endpoint.queued_prefill_tokens for endpoint in endpoints]
        least, most = min(queues), max(queues)

        def score(endpoint: Endpoint) -> float:
            queued = endpoint.queued_prefill_tokens
            queue = (most - queued) / (most - least) if most > least else 1.0
            prefix = tokens[endpoint.slot] / work.prefill_tokens
            return (
                queue_weight * queue
                + kv_weight * (1.0 - endpoint.kv_share())
                + prefix_weight * prefix
            )

        return [-score(endpoint) for endpoint in endpoints]

    def terms(
        self,
        endpoints: Sequence[Endpoint],
        places: Sequence[int],
        work: Work,
        matched: TokensBySlot,
    ) -> list[Terms]:
        """The KV score alone; the others are relative to the rest."""
        return [{"kv_score": 1.0 - endpoints[at].kv_share()} for at in places]


class Blind:
    """A policy that is told of no prefix."""

    needs_prefixes = False

    def __init__(self, policy: RoutingPolicy) -> None:
        self.name = f"{policy.name}-blind"
        self._policy = policy

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """As if every prompt were new everywhere."""
        return self._policy.costs(endpoints, work, no_tokens_of(endpoints))

    def terms(
        self,
        endpoints: Sequence[Endpoint],
        places: Sequence[int],
        work: Work,
        matched: TokensBySlot,
    ) -> list[Terms]:
        """The same."""
        return self._policy.terms(endpoints, places, work, no_tokens_of(endpoints))


class Precise:
    """A policy that is told by the engines themselves what their caches hold."""

    needs_prefixes = True

    def __init__(self, policy: RoutingPolicy, known_tokens: KnownTokens) -> None:
        self.name = f"{policy.name}-precise"
        self._policy = policy
        self._known_tokens = known_tokens

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """With what the engines say in the place of beliefs."""
        return self._policy.costs(endpoints, work, self._told(endpoints, work))

    def terms(
        self,
        endpoints: Sequence[Endpoint],
        places: Sequence[int],
        work: Work,
        matched: TokensBySlot,
    ) -> list[Terms]:
        """The same."""
        return self._policy.terms(endpoints, places, work, self._told(endpoints, work))

    def _told(self, endpoints: Sequence[Endpoint], work: Work) -> list[int]:
        told = no_tokens_of(endpoints)
        for endpoint in endpoints:
            told[endpoint.slot] = self._known_tokens(endpoint, work)
        return told


def no_tokens_of(endpoints: Sequence[Endpoint]) -> list[int]:
    """Zero at every slot that they have."""
    return [0] * (1 + max(endpoint.slot for endpoint in endpoints))


def of_router(make: PolicyFactory) -> Callable[[PolicyContext], RoutingPolicy]:
    """One of the router's own."""
    return lambda context: make(context.rng)


headrace = "headrace"  # the real picker with its limits and the fair queue; not in the table below
policies: dict[str, Callable[[PolicyContext], RoutingPolicy]] = {
    "random": lambda _: RandomChoice(),
    **{name: of_router(make) for name, make in router_policies.items()},
    "cache-aware": lambda _: CacheAware(),
    "scored": lambda _: Scored(),
    "least-work-blind": lambda _: Blind(least_work()),
    "least-work-precise": lambda context: Precise(least_work(), context.known_tokens),
    "least-harm-precise": lambda context: Precise(least_harm(), context.known_tokens),
}
