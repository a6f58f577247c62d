"""Who asks: by the token that is presented, and whether it is a program of this machine."""

from headrace.http.asgi import Scope, header
from headrace.http.server import is_loopback


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
        and header(scope, b"x-forwarded-for") is None
        and header(scope, b"forwarded") is None
    )


def asked_name(scope: Scope) -> str:
    """The name under which this server was asked, without its port."""
    host = header(scope, b"host") or ""
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() else host).strip("[]")
