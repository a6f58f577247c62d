"""Availability first, then one cohort, then near ones, then a session, then the least cost."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from headrace.base.errors import Unavailable
from headrace.router.candidates import Place
from headrace.router.decision_log import DecisionLog
from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker, Saturated
from headrace.router.policy import LeastTokens, RoutingPolicy
from headrace.router.prompt_prefix import prefix_of_body

work = Work(10, 10)
pools = [("ver_1", 1)]


def make_set(*names: str, engine_key: str = "") -> EndpointSet:
    endpoints = EndpointSet()
    endpoints.update(
        [EndpointSpec(name, "ver_1", f"http://{name}", engine_key=engine_key) for name in names]
    )
    return endpoints


def make_picker(endpoints: EndpointSet, policy: RoutingPolicy | None = None) -> Picker:
    return Picker(endpoints, random.Random(1), policy, log=DecisionLog())


def prompt(text: str, request_id: str = "") -> Work:
    body = b'{"messages":["' + text.encode() * 2000 + b'"]}'
    return Work(len(body) // 4, 10, prefix_of_body(body, "tenant"), request_id=request_id)


def test_the_least_loaded_available_endpoint_is_chosen() -> None:
    picker = make_picker(make_set("a", "b", "c"))
    chosen = [picker.lease(pools, work, 0.0).endpoint.spec.id for _ in range(3)]
    assert sorted(chosen) == ["a", "b", "c"]


def test_load_never_outweighs_availability() -> None:
    endpoints = make_set("busy", "dead")
    picker = make_picker(endpoints)
    dead = endpoints.find("dead")
    assert dead is not None
    eject(endpoints, dead.spec.id)
    for _ in range(20):
        assert picker.lease(pools, work, 0.0).endpoint.spec.id == "busy"


def test_ties_spread_evenly() -> None:
    picker = make_picker(make_set("a", "b", "c", "d"), LeastTokens())
    counts: Counter[str] = Counter()
    for _ in range(4000):
        lease = picker.lease(pools, work, 0.0)
        counts[lease.endpoint.spec.id] += 1
        lease.release()
    assert min(counts.values()) > 850


def test_excluded_endpoints_are_not_chosen() -> None:
    picker = make_picker(make_set("a", "b"))
    for _ in range(5):
        assert picker.lease(pools, work, 0.0, excluded={"a"}).endpoint.spec.id == "b"
    with pytest.raises(Unavailable):
        picker.lease(pools, work, 0.0, excluded={"a", "b"})


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
    with pytest.raises(Unavailable):
        make_picker(make_set("a")).lease([("ver_1", 0)], work, 0.0)


def eject(endpoints: EndpointSet, *names: str) -> None:
    for name in names:
        endpoint = endpoints.find(name)
        assert endpoint is not None
        lease = Lease(endpoint, work, 0.0)
        lease.fail(0.0)
        lease.release()


def test_an_ejected_endpoint_is_tried_where_it_is_the_last() -> None:
    endpoints = make_set("a")
    eject(endpoints, "a")
    assert (
        make_picker(endpoints).lease(pools, work, 0.1, tries_ejected=True).endpoint.spec.id == "a"
    )


def test_an_ejected_endpoint_gets_nothing_beside_one_that_is_not() -> None:
    endpoints = make_set("a", "b", "c")
    eject(endpoints, "a", "b")
    picker = make_picker(endpoints)
    chosen = {picker.lease(pools, work, 0.1, tries_ejected=True).endpoint.spec.id for _ in range(9)}
    assert chosen == {"c"}
    healthy = endpoints.find("c")
    assert healthy is not None
    healthy.capacity.requests_max = healthy.in_flight_requests
    healthy.follow_health()
    with pytest.raises(Saturated):
        picker.lease(pools, work, 0.1, tries_ejected=True)


def test_ejected_endpoints_are_tried_once_each_and_not_beyond_their_room() -> None:
    endpoints = make_set("a", "b")
    eject(endpoints, "a", "b")
    picker = make_picker(endpoints)
    first = picker.lease(pools, work, 0.1, tries_ejected=True).endpoint.spec.id
    second = picker.lease(pools, work, 0.1, {first}, tries_ejected=True).endpoint.spec.id
    assert {first, second} == {"a", "b"}
    assert not picker.has_others(pools, {first, second})
    with pytest.raises(Unavailable) as caught:
        picker.lease(pools, work, 0.1, {first, second}, tries_ejected=True)
    assert not isinstance(caught.value, Saturated)
    for endpoint in endpoints:
        endpoint.capacity.requests_max = 1
    with pytest.raises(Saturated):
        picker.lease(pools, work, 0.1, tries_ejected=True)


def test_refusal_says_when_an_ejection_ends() -> None:
    picker = make_picker(make_set("a"))
    picker.lease(pools, work, 100.0).fail(100.0)
    with pytest.raises(Unavailable) as caught:
        picker.lease(pools, work, 100.25)
    assert caught.value.retry_after_s == pytest.approx(0.25)


def test_a_prompt_goes_where_its_beginning_is() -> None:
    picker = make_picker(make_set("a", "b", "c"))
    first = picker.lease(pools, prompt("hello "), 0.0)
    first.prefilled(1.0)
    for _ in range(5):
        again = picker.lease(pools, prompt("hello "), 2.0)
        assert again.endpoint is first.endpoint
        assert again.predicted_tokens > 2500
    assert picker.lease(pools, prompt("another"), 2.0).endpoint is not first.endpoint


def test_what_an_engine_reports_is_compared_with_what_was_predicted() -> None:
    picker = make_picker(make_set("a"))
    picker.lease(pools, prompt("hello "), 0.0)
    lease = picker.lease(pools, prompt("hello "), 1.0)
    picker.answered(lease, lease.predicted_tokens - 100)
    record = picker.predictions
    assert (record.requests, record.missed_tokens, record.surprise_tokens) == (1, 100, 0)


def test_a_relaunched_process_is_believed_to_have_nothing() -> None:
    endpoints = make_set("a", engine_key="first")
    picker = make_picker(endpoints)
    picker.lease(pools, prompt("hello "), 0.0)
    endpoints.update([EndpointSpec("a", "ver_1", "http://a", engine_key="second")])
    assert picker.lease(pools, prompt("hello "), 1.0).predicted_tokens == 0


def test_requests_of_a_session_stay_together_and_leave_an_overloaded_endpoint() -> None:
    endpoints = make_set("a", "b", "c")
    picker = make_picker(endpoints)
    session = Work(10, 10, session="chat 7")
    homes = {picker.lease(pools, session, 0.0).endpoint.spec.id for _ in range(1)}
    (home,) = homes
    other = make_picker(make_set("a", "b", "c"))
    assert other.lease(pools, session, 0.0).endpoint.spec.id == home, "gateways agree"
    chosen = {picker.lease(pools, session, 0.0).endpoint.spec.id for _ in range(8)}
    assert len(chosen) > 1, "one session does not bury one endpoint"


def test_an_adapter_goes_where_it_is_loaded() -> None:
    picker = make_picker(make_set("a", "b", "c"))
    tuned = Work(10, 10, adapter="law")
    first = picker.lease(pools, tuned, 0.0).endpoint
    assert all(picker.lease(pools, tuned, 0.0).endpoint is first for _ in range(5))


def test_the_own_zone_answers_until_it_is_full_then_the_region_then_anybody() -> None:
    endpoints = EndpointSet()
    places = {"far": ("eu", "eu-1"), "near": ("us", "us-2"), "here": ("us", "us-1")}
    endpoints.update(
        EndpointSpec(name, "ver_1", f"http://{name}", region=region, zone=zone)
        for name, (region, zone) in places.items()
    )
    for endpoint in endpoints:
        endpoint.capacity.requests_max = 2
    picker = Picker(endpoints, random.Random(1), place=Place("us", "us-1"))
    chosen = [picker.lease(pools, work, 0.0).endpoint.spec.id for _ in range(6)]
    assert chosen == ["here"] * 2 + ["near"] * 2 + ["far"] * 2
    with pytest.raises(Saturated):
        picker.lease(pools, work, 0.0)


def test_a_canary_gets_its_share_and_nobody_fails_when_it_is_gone() -> None:
    endpoints = EndpointSet()

    def spec(name: str, cohort: str, weight: int, *, alive: bool = True) -> EndpointSpec:
        return EndpointSpec(name, "ver_1", "http://x", alive, cohort=cohort, cohort_weight=weight)

    endpoints.update([spec("old", "1", 90), spec("new", "2", 10)])
    picker = make_picker(endpoints)
    counts: Counter[str] = Counter()
    for _ in range(2000):
        lease = picker.lease(pools, work, 0.0)
        counts[lease.endpoint.spec.id] += 1
        lease.release()
    assert 130 < counts["new"] < 280
    endpoints.update([spec("old", "1", 90), spec("new", "2", 10, alive=False)])
    assert picker.lease(pools, work, 0.0).endpoint.spec.id == "old"


def test_a_decision_can_be_explained() -> None:
    endpoints = make_set("a", "b", "c", "d")
    picker = make_picker(endpoints)
    dead = endpoints.find("d")
    assert dead is not None
    eject(endpoints, dead.spec.id)
    picker.lease(pools, prompt("hello "), 0.0)
    lease = picker.lease(pools, prompt("hello ", "req_1"), 0.1)
    assert picker.log is not None
    (decision,) = picker.log.of("req_1")
    assert decision.chosen_id == lease.endpoint.spec.id
    assert decision.filtered == {"ejected after failures": 1}
    assert [view.is_chosen for view in decision.candidates] == [True, False, False]
    chosen = decision.candidates[0]
    assert chosen.cost == pytest.approx(sum(chosen.terms.values()))
    assert chosen.terms["prefix_credit_s"] < 0
    assert decision.candidates[0].matched_tokens == lease.predicted_tokens
    assert picker.log.of("req_2") == ()


def test_the_log_of_decisions_is_bounded() -> None:
    picker = Picker(make_set("a"), random.Random(1), log=DecisionLog(requests_max=3))
    for number in range(5):
        picker.lease(pools, prompt("x", f"req_{number}"), 0.0)
    assert picker.log is not None
    assert [bool(picker.log.of(f"req_{number}")) for number in range(5)] == [False] * 2 + [True] * 3


def test_a_thousand_endpoints_keep_few_candidates() -> None:
    picker = make_picker(make_set(*(f"rep_{number}" for number in range(1000))))
    picker.lease(pools, prompt("hello ", "req_1"), 0.0)
    assert picker.log is not None
    (decision,) = picker.log.of("req_1")
    assert decision.endpoint_count == 1000
    assert 1 <= len(decision.candidates) <= 9
    assert sum(view.is_chosen for view in decision.candidates) == 1


def test_who_has_the_prefix_is_overbooked_before_a_stray_copy_is_made() -> None:
    endpoints = make_set("a", "b")
    picker = make_picker(endpoints)
    for endpoint in endpoints:
        endpoint.capacity.requests_max = 2
    owner = picker.lease(pools, prompt("hello "), 0.0).endpoint
    chosen = [picker.lease(pools, prompt("hello "), 0.0).endpoint for _ in range(4)]
    assert [endpoint is owner for endpoint in chosen] == [True, True, False, False]
    with pytest.raises(Saturated):
        picker.lease(pools, prompt("new"), 0.0)


def test_a_prompt_that_nobody_knows_goes_to_the_least_busy_whoever_knows_most() -> None:
    endpoints = make_set("knows much", "busy and knows nothing")
    picker = make_picker(endpoints)
    learned, busy = endpoints.pool("ver_1")
    for number in range(50):
        others = {busy.spec.id}
        picker.lease(pools, prompt(f"{number:06d} "), 0.0, excluded=others).release()
    Lease(busy, Work(5_000, 500), 0.0)
    for number in range(5):
        lease = picker.lease(pools, prompt(f"new {number:02d} "), 1.0)
        assert lease.endpoint is learned
        lease.release()


@pytest.mark.parametrize("how", ["ejected", "draining", "gone"])
def test_no_prefix_leads_to_an_endpoint_that_does_not_serve(how: str) -> None:
    endpoints = make_set("a", "b")
    picker = make_picker(endpoints)
    first = picker.lease(pools, prompt("hello "), 0.0)
    first.prefilled(0.1)
    first.release()
    owner = first.endpoint.spec
    assert picker.lease(pools, prompt("hello "), 0.2).endpoint.spec.id == owner.id
    others = [each.spec for each in endpoints if each.spec.id != owner.id]
    if how == "ejected":
        eject(endpoints, owner.id)
    elif how == "draining":
        endpoints.update([*others, replace(owner, accepts_requests=False)])
    else:
        endpoints.update(others)
    for _ in range(5):
        lease = picker.lease(pools, prompt("hello "), 0.3)
        assert lease.endpoint.spec.id == others[0].id
        lease.release()
