"""A key opens its endpoints to its networks while it lives, and nothing tells why another fails."""

import msgspec
import pytest

from headrace.base.errors import AuthenticationFailed, PermissionDenied
from headrace.gateway.authenticate import Authenticator
from headrace.gateway.snapshot import Principal, Snapshot, join_principals
from headrace.http.asgi import Scope
from headrace.http.callers import networks_of
from headrace.spec.api_key_format import format_key, hash_secret
from headrace.spec.endpoints import endpoint_names, endpoint_of
from headrace.spec.tenancy import ApiKey, KeyState, Project, Tenant

pepper = b"p" * 32
secret = b"s" * 32
key_id = "key_" + "0" * 26
tenant = Tenant(id="ten_1", name="acme", create_time=0.0)
project = Project(id="prj_1", name="web", parent_id="ten_1", create_time=0.0)
key = ApiKey(
    id=key_id,
    name="ci",
    parent_id="prj_1",
    create_time=0.0,
    secret_hmac=hash_secret(pepper, secret.hex()),
)


def scope(path: str = "/v1/chat/completions", client: str | None = "203.0.113.9") -> Scope:
    return {
        "type": "http",
        "path": path,
        "client": None if client is None else (client, 5000),
        "headers": [(b"authorization", f"Bearer {format_key(key_id, secret)}".encode())],
    }


def authenticate(changed: ApiKey, asked: Scope, wall_s: float = 100.0) -> Principal:
    principals = join_principals([changed], {"prj_1": project}, {"ten_1": tenant})
    return Authenticator(pepper).authenticate(asked, Snapshot(principals=principals), wall_s)


def test_a_key_without_bounds_opens_everything() -> None:
    assert authenticate(key, scope()).key == key
    assert authenticate(key, scope("/v1/anything", None)).key == key


@pytest.mark.parametrize(
    ("path", "is_open"),
    [
        ("/v1/chat/completions", True),
        ("/v1/embeddings", True),
        ("/v1/completions", False),
        ("/v1/models", False),
        ("/v1/chatter", False),
        ("/v1//chat/completions", False),
        ("/v1/chat%2fcompletions", False),
        ("/v2/chat/completions", False),
        ("/chat/completions", False),
        ("/", False),
    ],
)
def test_an_endpoint_list_opens_what_it_names(path: str, is_open: bool) -> None:
    bounded = msgspec.structs.replace(key, endpoints=("chat", "embeddings"))
    if is_open:
        authenticate(bounded, scope(path))
    else:
        with pytest.raises(PermissionDenied, match="may not call"):
            authenticate(bounded, scope(path))


@pytest.mark.parametrize(
    ("client", "is_open"),
    [
        ("203.0.113.9", True),
        ("::ffff:203.0.113.9", True),
        ("2001:db8::5", True),
        ("203.0.114.1", False),
        ("2001:db9::5", False),
        ("::1", False),
        ("not an address", False),
        (None, False),
    ],
)
def test_a_network_list_opens_to_its_addresses(client: str | None, is_open: bool) -> None:
    bounded = msgspec.structs.replace(key, allowed_networks=("203.0.113.0/24", "2001:db8::/32"))
    if is_open:
        authenticate(bounded, scope(client=client))
    else:
        with pytest.raises(PermissionDenied, match="network address"):
            authenticate(bounded, scope(client=client))


@pytest.mark.parametrize(
    ("peer", "forwarded", "is_open"),
    [
        ("10.0.0.2", ["203.0.113.9"], True),
        ("::ffff:10.0.0.2", ["::ffff:203.0.113.9"], True),
        ("10.0.0.2", ["203.0.113.9:4711"], True),
        ("10.0.0.2", ["[2001:db8::9]:4711"], True),
        ("10.0.0.2", ["198.51.100.7, 203.0.113.9"], True),
        ("10.0.0.2", ["203.0.113.9", "10.0.0.3"], True),  # over two of ours
        ("10.0.0.2", ["203.0.113.9, 198.51.100.7"], False),  # the left one anybody may write
        ("10.0.0.2", ["203.0.113.9", "198.51.100.7"], False),
        ("10.0.0.2", ["203.0.113.9, unknown"], False),
        ("10.0.0.2", ["203.0.113.9,"], False),
        ("10.0.0.2", [], False),
        ("198.51.100.7", ["203.0.113.9"], False),  # no proxy of ours
        ("203.0.113.9", ["198.51.100.7"], True),
        (None, ["203.0.113.9"], False),
    ],
)
def test_only_trusted_proxies_say_from_where_a_caller_comes(
    peer: str | None, forwarded: list[str], is_open: bool
) -> None:
    bounded = msgspec.structs.replace(key, allowed_networks=("203.0.113.0/24", "2001:db8::/32"))
    asked = scope(client=peer)
    asked["headers"] += [(b"x-forwarded-for", value.encode()) for value in forwarded]
    principals = join_principals([bounded], {"prj_1": project}, {"ten_1": tenant})
    authenticator = Authenticator(pepper, networks_of(["10.0.0.0/8"]))
    snapshot = Snapshot(principals=principals)
    if is_open:
        assert authenticator.authenticate(asked, snapshot, 100.0)
    else:
        with pytest.raises(PermissionDenied, match="network address"):
            authenticator.authenticate(asked, snapshot, 100.0)


def test_a_network_that_can_not_be_read_opens_to_nobody() -> None:
    broken = msgspec.structs.replace(key, allowed_networks=("everywhere",))
    with pytest.raises(PermissionDenied):
        authenticate(broken, scope())


def test_dead_keys_are_answered_like_unknown_ones() -> None:
    dead = (
        msgspec.structs.replace(key, state=KeyState.REVOKED),
        msgspec.structs.replace(key, expire_time=100.0),
        msgspec.structs.replace(key, secret_hmac=bytes(32)),
        msgspec.structs.replace(key, id="key_" + "1" * 26),
        msgspec.structs.replace(key, parent_id="prj_gone"),
    )
    messages = set()
    for changed in dead:
        with pytest.raises(AuthenticationFailed) as caught:
            authenticate(changed, scope())
        messages.add(caught.value.message)
    assert len(messages) == 1
    assert authenticate(msgspec.structs.replace(key, expire_time=100.1), scope())


def test_every_endpoint_name_has_a_path() -> None:
    assert {endpoint_of(f"/v1/{name}") for name in endpoint_names} == set(endpoint_names)
