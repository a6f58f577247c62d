"""Routes for whoever operates the server: usage of ended requests, aborts, pause, resume, drain.

Those that change something ask for the server's key, and are closed where none is set.
"""

import msgspec

from headrace.engine_server.generating import Generating
from headrace.engine_server.routes import Access, Call, Route
from headrace.http.asgi import send_json

usage_wait_s = 2.0

_encode = msgspec.json.Encoder().encode


class OperatorRoutes:
    """`/internal/...`"""

    def __init__(self, generating: Generating) -> None:
        self._generating = generating

    def routes(self) -> list[Route]:
        """The routes."""
        usage = Route(
            "GET",
            "/internal/usage/{request_id...}",
            self._usage,
            summary="What a request that ended used",
        )
        changes = [
            ("/internal/abort/{request_id...}", self._abort, "End a request"),
            ("/internal/pause", self._pause, "Refuse new requests until resumed"),
            ("/internal/resume", self._resume, "Take new requests again"),
            ("/internal/drain", self._drain, "Be unready and refuse new requests from now on"),
        ]
        return [
            usage,
            *(
                Route("POST", path, handler, Access.OPERATOR, summary=summary)
                for path, handler, summary in changes
            ),
        ]

    async def _usage(self, call: Call) -> None:
        request_id = call.values["request_id"]
        ended = await self._generating.service.usage.find(request_id, usage_wait_s)
        await send_json(call.send, 200, _encode(ended))

    async def _abort(self, call: Call) -> None:
        self._generating.service.engine.abort(call.values["request_id"])
        await self._send_state(call)

    async def _pause(self, call: Call) -> None:
        self._generating.is_paused = True
        await self._send_state(call)

    async def _resume(self, call: Call) -> None:
        self._generating.is_paused = False
        await self._send_state(call)

    async def _drain(self, call: Call) -> None:
        self._generating.is_draining = True
        await self._send_state(call)

    async def _send_state(self, call: Call) -> None:
        generating = self._generating
        state = {
            "paused": generating.is_paused,
            "draining": generating.is_draining,
            "running_requests": len(generating.service.engine.streams),
        }
        await send_json(call.send, 200, _encode(state))
