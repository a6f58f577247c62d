"""The endpoint set follows the whole state."""

from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work


def spec(
    replica: str, *, pool: str = "ver_1", address: str = "http://a", key: str = "k"
) -> EndpointSpec:
    return EndpointSpec(replica, pool, address, engine_key=key)


def test_update_replaces_the_whole_set() -> None:
    endpoints = EndpointSet()
    endpoints.update([spec("rep_1"), spec("rep_2", pool="ver_2")])
    endpoints.update([spec("rep_2", pool="ver_2"), spec("rep_3", pool="ver_2")])
    assert [endpoint.spec.id for endpoint in endpoints.pool("ver_2")] == ["rep_2", "rep_3"]
    assert list(endpoints.pool("ver_1")) == []
    assert endpoints.find("rep_1") is None


def test_load_and_health_survive_an_update_of_the_same_process() -> None:
    endpoints = EndpointSet()
    endpoints.update([spec("rep_1")])
    endpoint = endpoints.pool("ver_1")[0]
    lease = Lease(endpoint, Work(5, 5), 0.0)
    lease.fail(0.0)
    draining = EndpointSpec("rep_1", "ver_1", "http://a", accepts_requests=False, engine_key="k")
    endpoints.update([draining])
    assert endpoints.pool("ver_1")[0] is endpoint
    assert endpoint.in_flight_tokens == 10
    assert not endpoint.is_available(1000.0)


def test_a_relaunched_replica_starts_without_load_or_history() -> None:
    endpoints = EndpointSet()
    endpoints.update([spec("rep_1", key="old")])
    lease = Lease(endpoints.pool("ver_1")[0], Work(5, 5), 0.0)
    lease.fail(0.0)
    endpoints.update([spec("rep_1", key="new")])
    fresh = endpoints.pool("ver_1")[0]
    assert fresh.is_available(0.0)
    lease.release()
    assert fresh.in_flight_tokens == 0
