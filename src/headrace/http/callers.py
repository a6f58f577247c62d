"""Who asks: by the token that is presented, from which address, and whether from this machine."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from headrace.http.asgi import Scope, header
from headrace.http.server import is_loopback

proxy_headers = frozenset((b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"cf-connecting-ip"))


def bearer_of(scope: Scope) -> str:
    """The token that was presented; empty if there was none."""
    return (header(scope, b"authorization") or "").removeprefix("Bearer ")


def is_local(scope: Scope) -> bool:
    """Whether a program of this machine asks: not through a proxy, nor a page by another name."""
    peer = scope.get("client")
    return (
        peer is not None
        and is_loopback(peer[0])
        and is_loopback(asked_name(scope))
        and not any(is_of_a_proxy(name) for name, _ in scope["headers"])
    )


def is_of_a_proxy(name: bytes) -> bool:
    """Whether a header tells of a proxy on the way; a proxy may be set up to add none."""
    return name in proxy_headers or name.startswith(b"x-forwarded-")


def asked_name(scope: Scope) -> str:
    """The name under which this server was asked, without its port."""
    host = header(scope, b"host") or ""
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() else host).strip("[]")


Networks = tuple[IPv4Network | IPv6Network, ...]


def networks_of(texts: Iterable[str]) -> Networks:
    """Networks by their texts, empty ones left out; ValueError names one that is none."""
    return tuple(ip_network(text.strip()) for text in texts if text.strip())


def caller_address(scope: Scope, trusted_proxies: Networks) -> str | None:
    """Where a request comes from; None if that is not to be told.

    The peer, or whom trusted proxies name in X-Forwarded-For. Each of its addresses was added by
    who stands right of it, so it is read from the right: the first that is no trusted proxy's is
    the caller's, and what is left of it anybody may have written."""
    peer = scope.get("client")
    found = address_of(peer[0]) if peer else None
    if not trusted_proxies:  # nearly always
        return None if found is None else str(found)
    hops = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
    for hop in reversed(hops.decode("latin-1").split(",") if hops else []):
        if found is None or not any(found in network for network in trusted_proxies):
            break
        found = address_of(hop)
    return None if found is None else str(found)


def address_of(text: str) -> IPv4Address | IPv6Address | None:
    """An address, which may have a port, and of IPv4 inside IPv6 the former; None if it is none."""
    host = text.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
