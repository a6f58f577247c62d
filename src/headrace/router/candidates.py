"""Which endpoints of a pool a request may go to: availability, room, canary share, nearness.

    pool -> available, not tried, not full -> one cohort of a canary -> the nearest that are left

An endpoint that has most of the prompt may be overbooked by half: a stray copy of a prefix costs a
fleet more than a short wait, because each one evicts another (docs/concepts/router.md). Nearness
is a filter and not a cost: the gateway's own zone answers as long as anything there has room, then
its region, then anybody. Fullness is the learnt limit of `capacity`, so requests spill over when
more would only wait.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice
from operator import attrgetter

import msgspec

from headrace.router.alike import Alike
from headrace.router.by_slot import TokensBySlot, many, most_tokens
from headrace.router.endpoint import Endpoint
from headrace.router.endpoint_set import Pool
from headrace.router.lease import Work
from headrace.router.rng import Rng

overbooking = 1.5  # of its learnt limit, for who has the prefix; 1.25 was enough in simulations
owner_share_min = 0.5  # of the prompt
told_max = 128  # impaired endpoints looked at for an explanation


class Place(msgspec.Struct, frozen=True):
    """Where a gateway is; empty names are nowhere in particular."""

    region: str = ""
    zone: str = ""


anywhere = Place()


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """The endpoints that are left, and how near they are."""

    endpoints: Sequence[Endpoint]
    tier: str  # zone, region or anywhere


def usable(
    pool: Pool, now_s: float, excluded: Collection[str], *, over_capacity: bool
) -> Sequence[Endpoint]:
    """Those that are healthy, were not tried, and have room unless that does not matter.

    No endpoint is asked while all are well, which is most of the time."""
    able: Sequence[Endpoint] = pool.accepting
    if pool.load.impaired:
        unusable = {
            e
            for e in pool.load.impaired
            if (e.is_full() and not over_capacity) or not e.breaker.permits(now_s)
        }
        if unusable and isinstance(able, Alike) and len(able) >= many:
            able = able.without(unusable)
        elif unusable:
            able = [e for e in able if e not in unusable]
    return [e for e in able if e.spec.id not in excluded] if excluded else able


def stand_ins(
    pool: Pool, now_s: float, excluded: Collection[str], *, over_capacity: bool
) -> list[Endpoint]:
    """Those that compute prompts for others, where none of those others is healthy and untried."""
    if any(e.breaker.permits(now_s) and e.spec.id not in excluded for e in pool.accepting):
        return []
    able = usable_for_prompts(pool, now_s, excluded, over_capacity=over_capacity)
    return [e for e in able if not e.spec.is_half]


def usable_for_prompts(
    pool: Pool, now_s: float, excluded: Collection[str], *, over_capacity: bool = False
) -> list[Endpoint]:
    """Of those that compute prompts for others, the healthy ones with room that were not tried."""
    return [
        e
        for e in pool.prefillers
        if e.breaker.permits(now_s)
        and e.spec.id not in excluded
        and (over_capacity or not e.is_full())
    ]


def last_resort(
    accepting: Sequence[Endpoint], now_s: float, excluded: Collection[str], *, over_capacity: bool
) -> list[Endpoint]:
    """The ejected ones that were not tried and have room, for when nothing else is left."""
    return [
        e
        for e in accepting
        if not e.breaker.permits(now_s)
        and e.spec.id not in excluded
        and (over_capacity or not e.is_full())
    ]


def owner_tokens_min(work: Work) -> float:
    """Tokens of a prompt that make who has them its owner."""
    return max(1.0, owner_share_min * work.prefill_tokens)


def overbooked_owners(
    pool: Pool, work: Work, matched: TokensBySlot, now_s: float, excluded: Collection[str]
) -> list[Endpoint]:
    """Full endpoints that have most of the prompt, and are not beyond their overbooking."""
    enough = owner_tokens_min(work)
    if most_tokens(matched) < enough:
        return []
    return [
        e
        for e in sorted(pool.load.impaired, key=attrgetter("slot"))  # who is full is among them
        if matched[e.slot] >= enough
        and e.spec.answers
        and e.capacity.requests_max <= e.in_flight_requests < overbooking * e.capacity.requests_max
        and e.breaker.permits(now_s)
        and e.spec.id not in excluded
    ]


def narrow(able: Sequence[Endpoint], pool: Pool, place: Place, rng: Rng) -> Candidates:
    """One cohort of them, and of it the nearest."""
    if pool.has_cohorts:
        able = drawn_cohort(able, rng)
    if not able or not (place.region or place.zone):
        return Candidates(able, "anywhere")
    near = [e for e in able if e.spec.region == place.region] if place.region else able
    if place.zone:
        nearest = [e for e in near if e.spec.zone == place.zone]
        if nearest:
            return Candidates(nearest, "zone")
    if near and place.region:
        return Candidates(near, "region")
    return Candidates(able, "anywhere")


def drawn_cohort(able: Sequence[Endpoint], rng: Rng) -> Sequence[Endpoint]:
    """The endpoints of one cohort, drawn by weight among those that have any; all if none has.

    Endpoints of weight 0 beside weighted ones get nothing unless they are all that is left."""
    weights = {e.spec.cohort: e.spec.cohort_weight for e in able}
    total = sum(weights.values())
    if len(weights) < 2 or total == 0:
        return able
    point = rng.random() * total
    for cohort, weight in weights.items():
        point -= weight
        if point < 0:
            return [e for e in able if e.spec.cohort == cohort]
    return able


def why_left_out(pool: Pool, now_s: float, excluded: Collection[str]) -> dict[str, int]:
    """How many endpoints cannot be used, by reason; of a sample where very many are impaired.

    The sample keeps a decision on a thousand endpoints as short as its choice."""
    reasons: Counter[str] = Counter()
    reasons["for prompts alone"] = len(pool.prefillers)
    taking = len(pool.accepting) + len(pool.prefillers)
    reasons["loading, draining or failed"] = len(pool.members) - taking
    for endpoint in islice(pool.load.impaired, told_max):
        spec = endpoint.spec
        if not spec.answers or spec.id in excluded:
            continue
        if not endpoint.breaker.permits(now_s):
            reasons["ejected after failures"] += 1
        elif endpoint.is_full():
            reasons["full"] += 1
    if excluded:
        reasons["tried before"] = sum(e.spec.id in excluded for e in pool.accepting)
    return {reason: count for reason, count in reasons.items() if count}
