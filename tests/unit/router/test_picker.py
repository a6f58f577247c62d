"""Availability first, then load, then chance."""

import random
from collections import Counter

import pytest

from headrace.base.errors import Unavailable
from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Work
from headrace.router.picker import Picker, least_loaded

work = Work(10, 10)


def make_set(*names: str, pool: str = "ver_1") -> EndpointSet:
    endpoints = EndpointSet()
    endpoints.update([EndpointSpec(name, pool, f"http://{name}") for name in names])
    return endpoints


def make_picker(endpoints: EndpointSet) -> Picker:
    return Picker(endpoints, random.Random(1))


def test_the_least_loaded_available_endpoint_is_chosen() -> None:
    endpoints = make_set("a", "b", "c")
    picker = make_picker(endpoints)
    chosen = [picker.lease([("ver_1", 1)], work, 0.0).endpoint.spec.id for _ in range(3)]
    assert sorted(chosen) == ["a", "b", "c"]


def test_load_never_outweighs_availability() -> None:
    endpoints = make_set("busy", "dead")
    picker = make_picker(endpoints)
    by_id = {endpoint.spec.id: endpoint for endpoint in endpoints}
    by_id["dead"].breaker.fail(0.0, is_probe=False)
    for _ in range(20):
        assert picker.lease([("ver_1", 1)], work, 0.0).endpoint.spec.id == "busy"


def test_ties_spread_evenly() -> None:
    endpoints = make_set("a", "b", "c", "d")
    rng = random.Random(7)
    counts: Counter[str] = Counter()
    for _ in range(4000):
        chosen = least_loaded(endpoints.pool("ver_1"), 0.0, rng)
        assert chosen is not None
        counts[chosen.spec.id] += 1
    assert min(counts.values()) > 850


def test_excluded_endpoints_are_not_chosen() -> None:
    picker = make_picker(make_set("a", "b"))
    for _ in range(5):
        lease = picker.lease([("ver_1", 1)], work, 0.0, excluded={"a"})
        assert lease.endpoint.spec.id == "b"
    with pytest.raises(Unavailable):
        picker.lease([("ver_1", 1)], work, 0.0, excluded={"a", "b"})


def test_pools_share_by_weight_and_an_empty_pool_gives_its_share_away() -> None:
    endpoints = EndpointSet()
    endpoints.update(
        [EndpointSpec("old", "ver_1", "http://old"), EndpointSpec("new", "ver_2", "http://new")]
    )
    picker = make_picker(endpoints)
    counts: Counter[str] = Counter()
    for _ in range(2000):
        lease = picker.lease([("ver_1", 9), ("ver_2", 1), ("ver_3", 50)], work, 0.0)
        counts[lease.endpoint.spec.id] += 1
        lease.release()
    assert 120 < counts["new"] < 290
    assert counts["old"] + counts["new"] == 2000


def test_a_pool_of_weight_zero_gets_nothing() -> None:
    endpoints = make_set("a")
    with pytest.raises(Unavailable):
        make_picker(endpoints).lease([("ver_1", 0)], work, 0.0)


def test_refusal_says_when_an_ejection_ends() -> None:
    endpoints = make_set("a")
    picker = make_picker(endpoints)
    picker.lease([("ver_1", 1)], work, 100.0).fail(100.0)
    with pytest.raises(Unavailable) as caught:
        picker.lease([("ver_1", 1)], work, 100.25)
    assert caught.value.retry_after_s == pytest.approx(0.25)
