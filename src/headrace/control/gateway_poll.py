"""Asks every gateway for its signals, and for its decision on a request."""

import asyncio
from collections.abc import Sequence

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, NotFound, Unavailable
from headrace.control.traffic import TrafficBook
from headrace.http.client import Asker
from headrace.spec.platform_token import platform_token
from headrace.spec.signals import GatewaySignals

poll_interval_s = 1.0
ask_timeout_s = 2.0
answer_bytes_max = 16 << 20


class GatewayPoll:
    """The gateways of this platform, asked over HTTP."""

    def __init__(
        self,
        client: Asker,
        urls: Sequence[str],
        *,
        pepper: bytes,
        book: TrafficBook,
        clock: Clock,
    ) -> None:
        self._client = client
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._headers = {"Authorization": f"Bearer {platform_token(pepper)}"}
        self._book = book
        self._clock = clock

    async def ask_all(self) -> None:
        """Take what each gateway says now; one that does not answer is asked again later."""
        answers = await asyncio.gather(*(self._signals(url) for url in self._urls))
        for signals in answers:
            if signals is not None:
                self._book.hear(signals, self._clock.monotonic_s())

    async def decisions(self, request_id: str) -> bytes:
        """How a request was routed, as JSON, by the gateway that knows.

        NotFound if none does, Unavailable if none answers."""
        heard = False
        for url in self._urls:
            try:
                answer = await self._client.fetch(
                    "GET",
                    f"{url}/internal/decisions/{request_id}",
                    headers=self._headers,
                    timeout_s=ask_timeout_s,
                    limit_bytes=answer_bytes_max,
                )
            except HeadraceError:
                continue
            heard = True
            if answer.status == 200:
                return answer.body
        if not heard:
            raise Unavailable("no gateway answers; are they up?")
        raise NotFound(
            f"no gateway knows of a request {request_id!r}; each keeps its last few thousand, and "
            "the id is in the X-Request-Id header of the answer"
        )

    async def _signals(self, url: str) -> GatewaySignals | None:
        try:
            answer = await self._client.fetch(
                "GET",
                f"{url}/internal/signals",
                headers=self._headers,
                timeout_s=ask_timeout_s,
                limit_bytes=answer_bytes_max,
            )
            if answer.status != 200:
                return None
            return msgspec.json.decode(answer.body, type=GatewaySignals)
        except (HeadraceError, msgspec.DecodeError):
            return None
