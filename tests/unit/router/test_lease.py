"""A lease's load comes and goes exactly once."""

from headrace.router.breaker import ejection_s_min
from headrace.router.capacity import limit_start
from headrace.router.endpoint import Endpoint, EndpointSpec, PoolLoad
from headrace.router.lease import Lease, Work


def make_endpoint() -> Endpoint:
    return Endpoint(EndpointSpec("rep_1", "ver_1", "http://127.0.0.1:1"))


def test_release_gives_everything_back_once() -> None:
    endpoint = make_endpoint()
    first = Lease(endpoint, Work(100, 20), 0.0)
    second = Lease(endpoint, Work(3, 4), 0.0)
    assert (endpoint.in_flight_tokens, endpoint.in_flight_requests) == (127, 2)
    first.release()
    first.release()
    assert (endpoint.in_flight_tokens, endpoint.in_flight_requests) == (7, 1)
    second.release()
    assert (endpoint.in_flight_tokens, endpoint.in_flight_requests) == (0, 0)


def test_the_first_token_gives_back_the_prompt() -> None:
    endpoint = make_endpoint()
    lease = Lease(endpoint, Work(100, 20), 0.0)
    lease.prefilled(1.0)
    lease.prefilled(1.0)
    assert endpoint.in_flight_tokens == lease.held_tokens == 20
    lease.release()
    lease.prefilled(1.0)
    assert endpoint.in_flight_tokens == 0


def test_a_probe_without_a_verdict_does_not_block_the_endpoint() -> None:
    endpoint = make_endpoint()
    Lease(endpoint, Work(1, 1), 0.0).fail(0.0)
    probe = Lease(endpoint, Work(1, 1), ejection_s_min)
    assert not endpoint.is_available(ejection_s_min)
    probe.release()
    assert endpoint.is_available(ejection_s_min)


def test_a_probe_that_answers_opens_the_endpoint_before_it_ends() -> None:
    endpoint = make_endpoint()
    Lease(endpoint, Work(1, 1), 0.0).fail(0.0)
    probe = Lease(endpoint, Work(1, 1), ejection_s_min)
    probe.succeed()
    assert endpoint.is_available(ejection_s_min)


def test_an_answer_is_awaited_only_where_it_can_change_something() -> None:
    endpoint = make_endpoint()
    well = Lease(endpoint, Work(1, 1), 0.0)
    assert not well.is_awaited
    Lease(endpoint, Work(1, 1), 0.0).fail(0.0)
    probe = Lease(endpoint, Work(1, 1), ejection_s_min)
    assert well.is_awaited
    assert probe.is_awaited
    probe.answered()
    assert not probe.is_awaited
    assert endpoint.is_available(ejection_s_min)


def test_an_endpoint_is_impaired_in_its_pool_exactly_while_it_is_full_or_ejected() -> None:
    endpoint = make_endpoint()
    impaired = endpoint.pool_load.impaired
    leases = [Lease(endpoint, Work(1, 1), 0.0) for _ in range(limit_start)]
    assert endpoint in impaired
    leases.pop().release()
    assert endpoint not in impaired
    leases[0].fail(0.0)
    leases.pop().release()
    assert endpoint in impaired
    elsewhere = PoolLoad()
    endpoint.join(elsewhere)
    assert endpoint not in impaired
    assert endpoint in elsewhere.impaired
    Lease(endpoint, Work(1, 1), ejection_s_min).succeed()
    assert endpoint not in elsewhere.impaired


def test_secrets_are_not_in_the_text_of_an_endpoint() -> None:
    spec = EndpointSpec("rep_1", "ver_1", "http://127.0.0.1:1", engine_key="canary")
    assert "canary" not in repr(spec)
