"""The one way out to addresses that somebody else chose: webhooks, media, identity providers.

    address  http or https, without credentials in it; https unless the host is allowed by name
    resolve  every address that the name has must be public: not private, loopback, link-local,
             shared, multicast, reserved, a cloud's metadata service, or one of these inside an
             IPv6 address that carries an IPv4 one
    pin      the connection goes to the addresses that were checked, not to a later answer of DNS
    redirect none is followed
    bounds   time, and bytes of the answer

An operator may allow hosts by name, for services of the own network.
"""

import ipaddress
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import SplitResult, urlsplit

from headrace.base.errors import InvalidRequest, PermissionDenied

url_characters_max = 2048

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Not of the public Internet, whatever a version of Python's own table says: protocol assignments,
# which clouds use for metadata, relays, benchmarks, and one cloud's platform service.
special_networks: tuple[ipaddress.IPv4Network, ...] = tuple(
    ipaddress.IPv4Network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "168.63.129.16/32")
)
# IPv6 that carries an IPv4 address, which a gateway on the way may unpack.
carrier_networks: tuple[ipaddress.IPv6Network, ...] = tuple(
    ipaddress.IPv6Network(text)
    for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")
)


local_domains = frozenset({"localhost", "localdomain", "local", "internal", "intranet", "lan"})


class EgressAnswer(NamedTuple):
    """An answer that was read to its end."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """Where requests may go besides public addresses."""

    allowed_hosts: frozenset[str] = frozenset()  # lower case, without a port

    @classmethod
    def allowing(cls, hosts: Collection[str]) -> "EgressPolicy":
        """A policy that also allows these hosts."""
        names = (host.strip().lower().strip("[]") for host in hosts)
        return cls(frozenset(name for name in names if name))

    def check_url(self, url: str) -> SplitResult:
        """The parts of an address that may be asked; InvalidRequest or PermissionDenied if not."""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise InvalidRequest("the address can't be read as a URL", param="url") from None
        if len(url) > url_characters_max or not url.isascii() or not url.isprintable():
            raise InvalidRequest("the address is too long or has odd characters", param="url")
        if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
            raise InvalidRequest(
                "the address is not http:// or https:// with a host and without a user",
                param="url",
            )
        if host in self.allowed_hosts:
            return parts
        if parts.scheme != "https":
            raise InvalidRequest("the address must be https://", param="url")
        literal = literal_address(host)
        if is_local_name(host) if literal is None else not is_public(literal):
            raise refused()
        return parts

    def permits(self, host: str, address: Address) -> bool:
        """Whether a request for `host` may go to one of its addresses."""
        return host.lower() in self.allowed_hosts or is_public(address)


no_hosts_allowed = EgressPolicy()


def literal_address(host: str) -> Address | None:
    """The address that a host is in itself, also in the old shorthand forms (`127.1`, `0x7f.1`)."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def is_local_name(host: str) -> bool:
    """Whether a name is never one of the public Internet (RFC 6761, 6762, 8375; ICANN's
    `internal`), so that it need not be resolved to be refused."""
    labels = host.rstrip(".").split(".")
    return len(labels) == 1 or labels[-1] in local_domains or labels[-2:] == ["home", "arpa"]


def is_public(address: Address) -> bool:
    """Whether an address is on the public Internet and of no special use."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = special_networks
    if isinstance(address, ipaddress.IPv6Address):
        networks = carrier_networks
    if any(address in network for network in networks):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def refused() -> PermissionDenied:
    """The same words whatever the address is, so that nobody maps our network with it."""
    return PermissionDenied(
        "the address does not lead to the public Internet; an operator can allow its host",
        param="url",
    )


class Fetcher(Protocol):
    """What those who ask one question at a time need of an `EgressClient`."""

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        limit_bytes: int,
        body: bytes | None = None,
    ) -> EgressAnswer:
        """Send a request and read the whole answer, as `EgressClient.fetch` says."""
        ...
