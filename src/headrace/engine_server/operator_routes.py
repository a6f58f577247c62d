"""What the gateway asks of a server beside answers: the usage of ended requests, and aborts.

All that changes the server itself is on the operator's own listener (admin_app.py).
"""

import msgspec

from headrace.base.errors import RequestAborted
from headrace.engine_server.generating import Generating
from headrace.engine_server.operator import aborted_words
from headrace.engine_server.routes import Access, Call, Route
from headrace.http.asgi import send_json

usage_wait_s = 2.0

_encode = msgspec.json.Encoder().encode


class OperatorRoutes:
    """`/internal/usage` and `/internal/abort`."""

    def __init__(self, generating: Generating) -> None:
        self._generating = generating

    def routes(self) -> list[Route]:
        """The routes; an abort asks for the server's key, and is closed where none is set."""
        return [
            Route(
                "GET",
                "/internal/usage/{request_id...}",
                self._usage,
                summary="What a request that ended used",
            ),
            Route(
                "POST",
                "/internal/abort/{request_id...}",
                self._abort,
                Access.OPERATOR,
                summary="End a request",
            ),
        ]

    async def _usage(self, call: Call) -> None:
        request_id = call.values["request_id"]
        ended = await self._generating.service.usage.find(request_id, usage_wait_s)
        await send_json(call.send, 200, _encode(ended))

    async def _abort(self, call: Call) -> None:
        engine = self._generating.service.engine
        engine.abort(call.values["request_id"], RequestAborted(aborted_words))
        await send_json(call.send, 200, _encode({"running_requests": len(engine.streams)}))
