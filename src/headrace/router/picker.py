"""Chooses an endpoint for a request: filters, then the policy's least cost, ties at random.

A model points at pools by weight (its versions). A pool is drawn by weight among those that have
an available endpoint, so that a version without one sends its share to the others. A session's
endpoint goes before the cost, and a cost before chance.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter

import msgspec

from headrace.base.errors import Unavailable
from headrace.router.adapters_loaded import adapter_load_s
from headrace.router.alike import Alike
from headrace.router.by_slot import Costs, TokensBySlot, cheap, least
from headrace.router.candidates import (
    Candidates,
    Place,
    anywhere,
    last_resort,
    narrow,
    overbooked_owners,
    stand_ins,
    usable,
    why_left_out,
)
from headrace.router.cost_policy import least_harm
from headrace.router.decision_log import CandidateView, Decision, DecisionLog, candidates_max
from headrace.router.endpoint import Endpoint
from headrace.router.endpoint_set import EndpointSet, Pool
from headrace.router.lease import Lease, Work
from headrace.router.policy import RoutingPolicy, Terms
from headrace.router.prompt_prefix import PromptPrefix
from headrace.router.rng import Rng
from headrace.router.stickiness import preferred

retry_after_s_default = 1.0  # when nothing tells when an endpoint will be there
all_full = "every replica of this model is full; try again"


class Saturated(Unavailable):
    """Endpoints could take the request, and all of them are full."""


WeightedPool = tuple[str, int]  # a pool's name and its share, 0 or more
weight_of = itemgetter(1)


@dataclass(slots=True)
class PredictionRecord:
    """How well the prefix index predicted, in tokens summed over requests."""

    requests: int = 0
    predicted_tokens: int = 0
    cached_tokens: int = 0  # what engines reported
    missed_tokens: int = 0  # predicted and not there
    surprise_tokens: int = 0  # there and not predicted


class Search(msgspec.Struct, frozen=True, gc=False):
    """One request and the pool that was drawn for it."""

    pool_name: str
    pool: Pool
    work: Work
    now_s: float
    excluded: Collection[str]
    matched: TokensBySlot  # of the prompt; empty if the policy asks for none


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A candidate and why it was taken."""

    at: int  # its position among the candidates
    reason: str
    costs: Costs | None = None  # of the candidates, in their order; None: none were reckoned


class Picker:
    """Routes requests over an endpoint set."""

    def __init__(
        self,
        endpoints: EndpointSet,
        rng: Rng,
        policy: RoutingPolicy | None = None,
        *,
        place: Place = anywhere,
        log: DecisionLog | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._rng = rng
        self.policy = policy or least_harm()
        self._place = place
        self.log = log  # None: no decision is kept
        self.predictions = PredictionRecord()

    def lease(
        self,
        pools: Sequence[WeightedPool],
        work: Work,
        now_s: float,
        excluded: Collection[str] = (),
        *,
        over_capacity: bool = False,
        leaves_spare: bool = False,
        tries_ejected: bool = False,
    ) -> Lease:
        """Choose an endpoint and count the request on it; `excluded` ids are not chosen.

        Where every endpoint is ejected, `tries_ejected` goes to one of them all the same.
        Saturated if those that could take it are full, which `over_capacity` ignores, or nearly so
        where it `leaves_spare`.
        Unavailable, with the time to wait, if no endpoint of any pool may be used."""
        left = list(filter(weight_of, pools))
        while left:
            drawn = left[0] if len(left) == 1 else self._draw(left)
            search = self._search(drawn[0], work, now_s, excluded)
            able = self._able(search, over_capacity=over_capacity) if search else ()
            if leaves_spare:
                able = [e for e in able if e.capacity.has_spare(e.in_flight_requests)]
            if search is not None and able:
                return self._lease_one_of(able, search)
            left.remove(drawn)
        if any(self._has_available(name, now_s, excluded) for name, weight in pools if weight > 0):
            raise Saturated(all_full)
        if tries_ejected:
            lease = self._lease_ejected(pools, work, now_s, excluded, over_capacity=over_capacity)
            if lease is not None:
                return lease
        raise Unavailable(
            "no replica of this model can take the request now; try again",
            retry_after_s=self._retry_after_s(pools, now_s),
        )

    def has_others(self, pools: Sequence[WeightedPool], excluded: Collection[str]) -> bool:
        """Whether an endpoint is left that was not tried, ejected or not."""
        return any(
            endpoint.spec.id not in excluded
            for name, weight in pools
            if weight > 0 and (pool := self._endpoints.whole_pool(name)) is not None
            for endpoint in (*pool.accepting, *pool.prefillers)
        )

    def answered(self, lease: Lease, cached_tokens: int) -> None:
        """An engine reported how much of a prompt it had: learn how good the prediction was."""
        if not self.policy.needs_prefixes:
            return
        is_told = lease.told_tokens is not None
        predicted = lease.predicted_tokens if lease.told_tokens is None else lease.told_tokens
        record = self.predictions
        record.requests += 1
        if not predicted and not cached_tokens:
            return  # as with most prompts: nothing to count or learn
        pool = self._endpoints.whole_pool(lease.endpoint.spec.pool)
        if pool is None:
            return
        record.predicted_tokens += predicted
        record.cached_tokens += cached_tokens
        record.missed_tokens += max(0, predicted - cached_tokens)
        record.surprise_tokens += max(0, cached_tokens - predicted)
        if not is_told:
            pool.index.observe(lease.endpoint.slot, predicted, cached_tokens)

    def _lease_ejected(
        self,
        pools: Sequence[WeightedPool],
        work: Work,
        now_s: float,
        excluded: Collection[str],
        *,
        over_capacity: bool,
    ) -> Lease | None:
        """A lease on an ejected endpoint, None if there is none; Saturated if they are all full.

        The pools are taken in their order: which of them has a live one is not known."""
        is_there = False
        for name, weight in pools:
            search = self._search(name, work, now_s, excluded) if weight > 0 else None
            if search is None:
                continue
            accepting = search.pool.accepting
            able = last_resort(accepting, now_s, excluded, over_capacity=over_capacity)
            if able:
                return self._lease_one_of(able, search)
            is_there |= any(endpoint.spec.id not in excluded for endpoint in accepting)
        if is_there:
            raise Saturated(all_full)
        return None

    def _search(
        self, pool_name: str, work: Work, now_s: float, excluded: Collection[str]
    ) -> Search | None:
        pool = self._endpoints.whole_pool(pool_name)
        if pool is None:
            return None
        matched: TokensBySlot = []
        if self.policy.needs_prefixes:
            matched = match(pool, work.prefix)
        return Search(pool_name, pool, work, now_s, excluded, matched)

    @staticmethod
    def _able(search: Search, *, over_capacity: bool) -> Sequence[Endpoint]:
        now_s, excluded = search.now_s, search.excluded
        accepting = search.pool.accepting
        if accepting and not search.pool.load.impaired and not excluded:
            return accepting  # all are well, and none is asked: most of the time
        able = usable(search.pool, now_s, excluded, over_capacity=over_capacity)
        if not able and search.pool.prefillers:
            able = stand_ins(search.pool, now_s, excluded, over_capacity=over_capacity)
        if over_capacity or len(able) == len(accepting) or not len(search.matched):
            return able
        owners = overbooked_owners(search.pool, search.work, search.matched, now_s, excluded)
        return able.joined_by(owners) if isinstance(able, Alike) else [*able, *owners]

    def _lease_one_of(self, able: Sequence[Endpoint], search: Search) -> Lease:
        candidates = narrow(able, search.pool, self._place, self._rng)
        choice = self._choose(candidates.endpoints, search.work, search.matched)
        endpoint = candidates.endpoints[choice.at]
        work = search.work
        if self.log is not None and work.request_id:
            self.log.add(self._decision(choice, candidates, search))
        predicted, told = 0, None
        if len(search.matched):
            pool, slot, now_s = search.pool, endpoint.slot, search.now_s
            if known := search.matched[slot]:
                predicted = min(int(known), work.prefill_tokens)
            pool.index.sent(slot, work.prefix, now_s, endpoint.kv_tokens)
            if pool.blocks.telling:
                told = pool.blocks.held_tokens(slot, work.prefix)
                pool.blocks.sent(slot, work.prefix, now_s)
        if work.adapter:
            endpoint.adapters.sent(work.adapter)
        return Lease(endpoint, work, search.now_s, predicted_tokens=predicted, told_tokens=told)

    def _choose(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Choice:
        if len(endpoints) == 1:
            return Choice(0, "the only one left")
        if work.session:
            at = endpoints.index(preferred(work.session, endpoints))
            return Choice(at, "session")
        costs = self.policy.costs(endpoints, work, matched)
        if work.adapter:
            costs = [
                float(cost) + adapter_load_s * (not has_adapter(endpoint, work.adapter))
                for endpoint, cost in zip(endpoints, costs, strict=True)
            ]
        return Choice(least(costs, self._rng), "least cost", costs)

    def _decision(self, choice: Choice, candidates: Candidates, search: Search) -> Decision:
        pool, work, matched = search.pool, search.work, search.matched
        endpoints = candidates.endpoints
        costs = choice.costs
        if costs is None:
            costs = self.policy.costs(endpoints, work, matched)
        kept = cheap(costs, candidates_max)
        if choice.at not in kept:
            kept.append(choice.at)
        views = [
            view_of(
                endpoints[at], float(costs[at]), terms, work, matched, is_chosen=at == choice.at
            )
            for at, terms in zip(
                kept, self.policy.terms(endpoints, kept, work, matched), strict=True
            )
        ]
        is_whole = len(endpoints) == len(pool.members)
        assert self.log is not None
        return Decision(
            request_id=work.request_id,
            attempt=self.log.attempts(work.request_id) + 1,
            monotonic_s=search.now_s,
            pool=search.pool_name,
            policy=self.policy.name,
            reason=choice.reason,
            endpoint_count=len(pool.members),
            filtered={} if is_whole else why_left_out(pool, search.now_s, search.excluded),
            tier=candidates.tier,
            prompt_tokens=work.prefill_tokens,
            candidates=tuple(views),
            chosen_id=endpoints[choice.at].spec.id,
        )

    def _has_available(self, pool: str, now_s: float, excluded: Collection[str]) -> bool:
        found = self._endpoints.whole_pool(pool)
        return found is not None and any(
            endpoint.is_available(now_s) and endpoint.spec.id not in excluded
            for endpoint in found.accepting
        )

    def _draw(self, pools: Sequence[WeightedPool]) -> WeightedPool:
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


def match(pool: Pool, prefix: PromptPrefix) -> TokensBySlot:
    """Tokens of a prompt that each slot has: by its engine's word, else as is believed."""
    index, slot_count = pool.index, pool.slot_count
    if not pool.blocks.telling:
        return index.match(prefix, slot_count)
    return pool.blocks.match(
        prefix, pool.slot_bits, slot_count, lambda: index.match(prefix, slot_count)
    )


def view_of(
    endpoint: Endpoint,
    cost: float,
    terms: Terms,
    work: Work,
    matched: TokensBySlot,
    *,
    is_chosen: bool,
) -> CandidateView:
    """A candidate as it was when it was chosen or not."""
    if work.adapter and not has_adapter(endpoint, work.adapter):
        terms = {**terms, "adapter_s": adapter_load_s}
    return CandidateView(
        endpoint_id=endpoint.spec.id,
        cost=cost,
        terms=terms,
        matched_tokens=int(matched[endpoint.slot]) if len(matched) else 0,
        in_flight_requests=endpoint.in_flight_requests,
        kv_share=endpoint.kv_share(),
        is_chosen=is_chosen,
    )


def has_adapter(endpoint: Endpoint, adapter: str) -> bool:
    """Whether an endpoint has an adapter loaded: from its start, or since it was sent to it."""
    return adapter in endpoint.spec.loras or adapter in endpoint.adapters
