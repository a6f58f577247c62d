"""What each policy prefers."""

import math
import random

import pytest

from headrace.router.alike import Alike
from headrace.router.by_slot import Costs, least
from headrace.router.cost_policy import harm_weight, least_harm, least_work
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
    for endpoint, cost in zip(endpoints, policy.costs(endpoints, work, [100, 300]), strict=True):
        terms = policy.terms(endpoint, work, [100, 300][endpoint.slot])
        assert math.isclose(sum(terms.values()), cost)


def test_costs_of_endpoints_that_are_alike_are_those_of_each() -> None:
    rng = random.Random(3)
    endpoints = EndpointSet()
    endpoints.update(EndpointSpec(f"rep_{n}", "ver_1", "http://x") for n in range(20))
    pool = endpoints.whole_pool("ver_1")
    assert pool is not None
    for endpoint in pool.members:
        for _ in range(rng.randrange(4)):
            Lease(endpoint, Work(rng.randrange(5000), 10), 0.0)
    assert isinstance(pool.accepting, Alike)
    for matched in ([0] * 20, [rng.randrange(1000) for _ in range(20)]):
        costs = least_harm().costs(pool.accepting, work, matched)
        assert costs == pytest.approx(least_harm().costs(list(pool.accepting), work, matched))
        for endpoint, cost in zip(pool.accepting, costs, strict=True):
            terms = least_harm().terms(endpoint, work, matched[endpoint.slot])
            assert cost == pytest.approx(sum(terms.values()))


def test_endpoints_of_two_deployments_are_not_alike() -> None:
    endpoints = EndpointSet()
    endpoints.update(
        EndpointSpec(f"rep_{n}", "ver_1", "http://x", deployment_id=f"dep_{n}") for n in range(2)
    )
    pool = endpoints.whole_pool("ver_1")
    assert pool is not None
    assert not isinstance(pool.accepting, Alike)
