"""Of many endpoints the router takes the one that a slow and obvious search takes."""

import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import Unavailable
from headrace.router.by_slot import (
    cheap,
    least,
    many,
    most_tokens,
    no_tokens,
    raise_tokens,
    set_tokens,
)
from headrace.router.candidates import overbooking, owner_share_min
from headrace.router.decision_log import DecisionLog
from headrace.router.endpoint import Endpoint, EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker
from headrace.router.policies import policies
from headrace.router.prompt_prefix import bytes_per_token, prefix_of_text

pools = [("ver_1", 1)]
counts = (3, many - 1, many, 3 * many + 1)


def endpoints_of(rng: random.Random, count: int) -> EndpointSet:
    endpoints = EndpointSet()
    specs = [EndpointSpec(f"rep_{n}", "ver_1", "http://x") for n in range(count)]
    endpoints.update(specs)
    if rng.random() < 0.3:  # slots are no longer in the order of members, and two devices differ
        gone = rng.sample(specs, count // 3)
        endpoints.update([spec for spec in specs if spec not in gone])
        endpoints.update([*(s for s in specs if s not in gone), *gone])
    if rng.random() < 0.2:
        endpoints.update(
            [
                *specs[: count // 2],
                *(
                    EndpointSpec(f"new_{n}", "ver_1", "http://x", deployment_id="b")
                    for n in range(count)
                ),
            ]
        )
    return endpoints


def believed(endpoint: Endpoint, work: Work, endpoints: EndpointSet) -> int:
    """What it should have of the prompt, one key after the other."""
    pool = endpoints.whole_pool("ver_1")
    assert pool is not None
    return min(pool.index.matched(endpoint.slot, work.prefix), work.prefill_tokens)


def may_be_chosen(
    endpoints: EndpointSet, work: Work, now_s: float, excluded: set[str]
) -> list[Endpoint]:
    """Healthy and untried, with room or as an owner of the prompt that may be overbooked."""
    enough = max(1.0, owner_share_min * work.prefill_tokens)
    found = []
    for endpoint in endpoints.pool("ver_1"):
        room = endpoint.capacity.requests_max
        if believed(endpoint, work, endpoints) >= enough:
            room = max(room, -int(-overbooking * room // 1))
        if (
            endpoint.is_available(now_s)
            and endpoint.spec.id not in excluded
            and endpoint.in_flight_requests < room
        ):
            found.append(endpoint)
    return found


def check_choice(picker: Picker, endpoints: EndpointSet, work: Work, excluded: set[str]) -> None:
    able = may_be_chosen(endpoints, work, 1.0, excluded)
    matched = [0] * (1 + max(endpoint.slot for endpoint in endpoints))
    for endpoint in endpoints:
        matched[endpoint.slot] = believed(endpoint, work, endpoints)
    terms = picker.policy.terms(able, range(len(able)), work, matched)
    costs = {e.spec.id: sum(parts.values()) for e, parts in zip(able, terms, strict=True)}
    try:
        lease = picker.lease(pools, work, 1.0, excluded)
    except Unavailable:
        assert not able
        return
    chosen = lease.endpoint.spec.id
    assert chosen in costs
    assert costs[chosen] <= min(costs.values()) + 1e-9
    assert picker.log is not None
    (decision,) = picker.log.of(work.request_id)
    views = {view.endpoint_id: view for view in decision.candidates}
    assert views[chosen].is_chosen
    assert views.keys() <= costs.keys()
    for view in views.values():
        assert abs(view.cost - costs[view.endpoint_id]) < 1e-9
    assert type(lease.predicted_tokens) is int


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.sampled_from(counts))
def test_the_choice_among_many_is_that_of_a_slow_search(seed: int, count: int) -> None:
    rng = random.Random(seed)
    endpoints = endpoints_of(rng, count)
    name = rng.choice(["least-harm", "least-work", "prefix-affinity"])
    picker = Picker(endpoints, rng, policies[name](rng), log=DecisionLog())
    texts = [rng.randbytes(20_000) for _ in range(3)]
    for endpoint in endpoints:
        endpoint.capacity.requests_max = rng.choice([1, 2, 4, 30])
        for _ in range(rng.randrange(3)):
            Lease(endpoint, Work(rng.randrange(9000), 100), 0.0)
        if rng.random() < 0.1:
            Lease(endpoint, Work(1, 1), 0.9).fail(0.9)
    ids = [endpoint.spec.id for endpoint in endpoints]
    for number in range(60):
        text = rng.choice(texts)[: rng.randrange(1, 20_000)]
        prefix = prefix_of_text(text, "tenant")
        tokens = len(text) // bytes_per_token
        work = Work(tokens, 50, prefix, request_id=f"req_{number}")
        excluded = set(rng.sample(ids, 2)) if rng.random() < 0.2 else set()
        check_choice(picker, endpoints, work, excluded)


def slow_tokens(count: int, writes: Sequence[tuple[int, int, bool]]) -> list[int]:
    values = [0] * count
    for slots, tokens, is_raise in writes:
        for slot in range(count):
            if slots >> slot & 1 and not (is_raise and values[slot] > tokens):
                values[slot] = tokens
    return values


writes = st.lists(
    st.tuples(st.integers(0, 1 << 200), st.integers(0, 10_000), st.booleans()), max_size=6
)


@settings(deadline=None)
@given(count=st.sampled_from([0, *counts]), written=writes)
def test_tokens_by_slot_are_the_same_in_lists_and_arrays(
    count: int, written: list[tuple[int, int, bool]]
) -> None:
    values = no_tokens(count)
    assert isinstance(values, list) == (count < many)
    for slots, tokens, is_raise in written:
        (raise_tokens if is_raise else set_tokens)(values, slots, tokens)
    expected = slow_tokens(count, written)
    assert list(values) == expected
    assert most_tokens(values) == max(expected, default=0)


@settings(deadline=None)
@given(
    costs=st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.0, float("inf")]), min_size=1, max_size=300),
    seed=st.integers(0, 1000),
)
def test_the_least_cost_is_drawn_alike_from_lists_and_arrays(costs: list[float], seed: int) -> None:
    array = np.array(costs)
    at = least(costs, random.Random(seed))
    assert at == least(array, random.Random(seed))
    assert costs[at] == min(costs)
    shown = cheap(array, 8)
    assert shown
    assert [costs[place] for place in shown] == sorted(costs)[: len(shown)]
    assert cheap(costs, 8)[: len(shown)] == shown or len(costs) > 32
