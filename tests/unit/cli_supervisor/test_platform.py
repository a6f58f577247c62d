import socket

import msgspec
import pytest

from headrace.cli.supervisor.platform import base_url, is_hopeless, ready_json, replica_part
from headrace.cli.supervisor.screen import Access, Part
from headrace.http.server import bind
from headrace.spec.deployments import Replica, ReplicaState


def replica(state: ReplicaState, attempts: int = 0, **fields: object) -> Replica:
    value = Replica(id="rep_1", name="a-0", create_time=0.0, state=state, attempts=attempts)
    return msgspec.structs.replace(value, **fields)


@pytest.mark.parametrize(
    ("host", "start"), [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:")]
)
def test_an_address_is_one_that_clients_here_can_use(host: str, start: str) -> None:
    with bind(host, 0) as sock:
        assert base_url(sock) == f"{start}{sock.getsockname()[1]}"


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_ipv6_address_is_in_brackets() -> None:
    try:
        sock = bind("::1", 0)
    except Exception as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    with sock:
        assert base_url(sock) == f"http://[::1]:{sock.getsockname()[1]}"


def test_a_replica_shows_how_far_it_is() -> None:
    loading = replica(ReplicaState.LOADING, detail="loading weights", progress=0.5)

    assert replica_part(loading) == Part("a-0", "busy", "loading", "loading weights", 0.5)
    assert replica_part(replica(ReplicaState.ACTIVE)) == Part("a-0", "ready", "ready")
    assert replica_part(replica(ReplicaState.FAILED, detail="x")).mood == "failed"


def test_a_replica_is_given_up_after_several_launches() -> None:
    assert not is_hopeless(replica(ReplicaState.FAILED, attempts=2))
    assert is_hopeless(replica(ReplicaState.FAILED, attempts=3))
    assert not is_hopeless(replica(ReplicaState.LOADING, attempts=9))


def test_the_ready_file_has_four_fields() -> None:
    access = Access("http://g", "http://a", "token", None, None)

    assert msgspec.json.decode(ready_json(access)) == {
        "gateway_url": "http://g",
        "admin_url": "http://a",
        "api_key": None,
        "admin_token": "token",
    }
