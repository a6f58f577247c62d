"""The connections of the way out: names are resolved, checked and connected to as checked.

`egress_client` loads this module with the first request: aiohttp takes a fifth of a second.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Mapping

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from headrace.base.errors import DeadlineExceeded, HeadraceError, Unavailable, UpstreamFailed
from headrace.http.egress import EgressAnswer, EgressPolicy, refused

connections_max = 32
connect_timeout_s = 5.0


class GuardedResolver(AbstractResolver):
    """Resolves names for aiohttp and lets only checked addresses through."""

    def __init__(self, policy: EgressPolicy) -> None:
        self._policy = policy

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses to connect to; PermissionDenied if any of them is not for us."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        results = []
        for address_family, _, protocol, _, sockaddr in found:
            text = str(sockaddr[0])
            if not self._policy.permits(host, ipaddress.ip_address(text.partition("%")[0])):
                raise refused()
            results.append(
                ResolveResult(
                    hostname=host,
                    host=text,
                    port=port,
                    family=address_family,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST,
                )
            )
        return results

    async def close(self) -> None:
        """Nothing is held."""


class EgressSession:
    """The connections to addresses that others chose, and what is asked over them."""

    def __init__(self, policy: EgressPolicy) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=GuardedResolver(policy),
                use_dns_cache=False,
                limit=connections_max,
                force_close=True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
            auto_decompress=False,
            trust_env=False,
        )

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        limit_bytes: int,
        body: bytes | None,
    ) -> EgressAnswer:
        """As `EgressClient.fetch`, for an address that was checked."""
        sent = {"accept-encoding": "identity", **headers}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(
                    method, url, data=body, headers=sent, allow_redirects=False
                ) as answer,
            ):
                return EgressAnswer(
                    answer.status, answer.content_type, await _read(answer, limit_bytes)
                )
        except HeadraceError:
            raise
        except TimeoutError:
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientConnectorError, socket.gaierror):
            raise Unavailable("no connection to that address") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UpstreamFailed(f"the request failed ({type(error).__name__})") from None

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


async def _read(answer: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size_bytes = 0
    while piece := await answer.content.readany():
        pieces.append(piece)
        size_bytes += len(piece)
        if size_bytes > limit_bytes:
            raise UpstreamFailed(f"the answer is over {limit_bytes} bytes")
    return b"".join(pieces)
