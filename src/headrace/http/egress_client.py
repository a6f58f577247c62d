"""Asks addresses that somebody else chose, as `egress` says where that may be."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.http.egress import EgressAnswer, EgressPolicy

if TYPE_CHECKING:
    from headrace.http.egress_session import EgressSession


class EgressClient:
    """Asks addresses that others chose; belongs to one event loop. Close it at the end."""

    def __init__(self, policy: EgressPolicy) -> None:
        self.policy = policy
        self._session: EgressSession | None = None  # until something is asked

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
        """Send a request and read the whole answer, in `timeout_s` altogether.

        PermissionDenied or InvalidRequest if the address is not for us; Unavailable, UpstreamFailed
        or DeadlineExceeded if nothing sound came back."""
        self.policy.check_url(url)
        session = self._session or await self._opened()
        return await session.fetch(
            method, url, headers=headers, timeout_s=timeout_s, limit_bytes=limit_bytes, body=body
        )

    async def _opened(self) -> "EgressSession":
        """The session; most processes never ask outside, and start without what it loads.

        It is loaded in a thread, because whatever else runs here would wait for it."""
        session_of = await asyncio.to_thread(loaded)
        if self._session is None:
            self._session = session_of(self.policy)
        return self._session

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()


def loaded() -> "type[EgressSession]":
    """The session's class, once its module is there."""
    from headrace.http.egress_session import EgressSession  # noqa: PLC0415 -- slow, seldom used

    return EgressSession
