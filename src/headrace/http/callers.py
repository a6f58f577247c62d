"""Who asks: by the token that is presented, and whether it is a program of this machine."""

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
