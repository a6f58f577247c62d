"""A lease's load comes and goes exactly once."""

from headrace.router.breaker import ejection_s_min
from headrace.router.endpoint import Endpoint, EndpointSpec
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


def test_secrets_are_not_in_the_text_of_an_endpoint() -> None:
    spec = EndpointSpec("rep_1", "ver_1", "http://127.0.0.1:1", engine_key="canary")
    assert "canary" not in repr(spec)
