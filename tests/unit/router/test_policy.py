"""What each policy prefers."""

import math
import random

import pytest

from headrace.router.alike import Alike
from headrace.router.by_slot import Costs, least, many
from headrace.router.cost_policy import crowd_damping, harm_weight, least_harm, least_work
from headrace.router.endpoint import Endpoint, EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work
from headrace.router.policy import LeastRequests, PrefixAffinity, RoundRobin, TwoChoices

work = Work(1000, 10)


def make_endpoints(count: int = 3) -> list[Endpoint]:
    return [
        Endpoint(EndpointSpec(f"rep_{slot}", "ver_1", "http://x"), slot=slot)
        for slot in range(count)
    ]


def best(costs: Costs) -> int:
    return least(costs, random.Random(1))


def test_round_robin_takes_each_in_turn() -> None:
    policy, endpoints = RoundRobin(), make_endpoints()
    assert [best(policy.costs(endpoints, work, [])) for _ in range(4)] == [0, 1, 2, 0]


def test_least_requests_counts_requests_not_tokens() -> None:
    endpoints = make_endpoints(2)
    Lease(endpoints[0], Work(9000, 10), 0.0)
    for _ in range(2):
        Lease(endpoints[1], Work(1, 1), 0.0)
    assert best(LeastRequests().costs(endpoints, work, [])) == 0


def test_two_choices_draws_two_and_takes_the_less_loaded() -> None:
    endpoints = make_endpoints(4)
    for endpoint in endpoints[:3]:
        Lease(endpoint, work, 0.0)
    policy = TwoChoices(random.Random(5))
    for _ in range(50):
        costs = policy.costs(endpoints, work, [])
        assert sum(cost < math.inf for cost in costs) == 2
    (only,) = policy.costs(endpoints[:1], work, [])
    assert only == 1.0


def test_prefix_affinity_ignores_load() -> None:
    endpoints = make_endpoints(2)
    for _ in range(10):
        Lease(endpoints[1], work, 0.0)
    assert best(PrefixAffinity().costs(endpoints, work, [0, 600])) == 1


def test_least_work_leaves_a_prefix_for_a_shorter_queue_and_least_harm_does_not() -> None:
    endpoints = make_endpoints(2)
    Lease(endpoints[1], Work(700, 10), 0.0)
    matched = [0, 600]
    assert best(least_work().costs(endpoints, work, matched)) == 0
    assert best(least_harm().costs(endpoints, work, matched)) == 1
    Lease(endpoints[1], Work(round(harm_weight * 600), 10), 0.0)
    assert best(least_harm().costs(endpoints, work, matched)) == 0


def test_a_cost_is_the_sum_of_its_terms() -> None:
    endpoints = make_endpoints(2)
    Lease(endpoints[1], Work(5000, 10), 0.0)
    policy = least_harm()
    for matched in ([100, 300], [100, 600]):
        costs = policy.costs(endpoints, work, matched)
        terms = policy.terms(endpoints, [0, 1], work, matched)
        for cost, parts in zip(costs, terms, strict=True):
            assert math.isclose(sum(parts.values()), cost)


def seconds(tokens: float) -> float:
    return tokens * make_endpoints(1)[0].rate.seconds_per_token


def crowded(*requests: int) -> list[Endpoint]:
    """Endpoints with so many requests, whose prompts are computed."""
    endpoints = make_endpoints(len(requests))
    for endpoint, count in zip(endpoints, requests, strict=True):
        for _ in range(count):
            Lease(endpoint, Work(0, 0), 0.0)
    return endpoints


def test_where_a_prompt_is_known_fresh_tokens_weigh_by_who_waits_for_them() -> None:
    endpoints = crowded(10, 30, 50)
    per_token_s = endpoints[0].rate.seconds_per_token
    costs = least_harm().costs(endpoints, work, [0, 0, 500])  # of 1,000
    for endpoint, cost, fresh in zip(endpoints, costs, (1000, 1000, 500), strict=True):
        share = (endpoint.in_flight_requests + crowd_damping) / (30 + crowd_damping)
        assert cost - endpoint.pressure_s == pytest.approx(
            harm_weight * share * fresh * per_token_s
        )


def test_a_prompt_that_no_candidate_has_most_of_weighs_the_same_everywhere() -> None:
    endpoints = crowded(10, 30, 50)
    per_token_s = endpoints[0].rate.seconds_per_token
    matched = [0, 0, 499, 1000]  # the fourth is full, say
    costs = least_harm().costs(endpoints, work, matched)
    for endpoint, cost, fresh in zip(endpoints, costs, (1000, 1000, 501), strict=True):
        assert cost - endpoint.pressure_s == pytest.approx(harm_weight * fresh * per_token_s)


def test_a_crowd_at_the_owner_sends_a_prompt_with_much_new_elsewhere() -> None:
    assert best(least_harm().costs(crowded(0, 30), work, [0, 500])) == 0
    assert best(least_harm().costs(crowded(30, 30), work, [0, 500])) == 1
    assert best(least_harm().costs(crowded(10, 30), work, [0, 900])) == 1


def test_two_requests_of_an_idle_fleet_are_no_crowd() -> None:
    assert best(least_harm().costs(crowded(0, 0, 2), work, [0, 0, 500])) == 2


@pytest.mark.parametrize("count", [20, many])
def test_costs_of_endpoints_that_are_alike_are_those_of_each(count: int) -> None:
    rng = random.Random(3)
    endpoints = EndpointSet()
    endpoints.update(EndpointSpec(f"rep_{n}", "ver_1", "http://x") for n in range(count))
    pool = endpoints.whole_pool("ver_1")
    assert pool is not None
    for endpoint in pool.members:
        for _ in range(rng.randrange(4)):
            Lease(endpoint, Work(rng.randrange(5000), 10), 0.0)
    assert isinstance(pool.accepting, Alike)
    for most in (1, 400, 1000):
        matched = [rng.randrange(most) for _ in range(count)]
        costs = least_harm().costs(pool.accepting, work, matched)
        assert costs == pytest.approx(least_harm().costs(list(pool.accepting), work, matched))
        terms = least_harm().terms(pool.accepting, range(count), work, matched)
        assert costs == pytest.approx([sum(parts.values()) for parts in terms])
        pool.members[0].rate.observe(1000, 2.0)  # slower: what is queued elsewhere costs this, too


def test_endpoints_of_two_deployments_are_not_alike() -> None:
    endpoints = EndpointSet()
    endpoints.update(
        EndpointSpec(f"rep_{n}", "ver_1", "http://x", deployment_id=f"dep_{n}") for n in range(2)
    )
    pool = endpoints.whole_pool("ver_1")
    assert pool is not None
    assert not isinstance(pool.accepting, Alike)
