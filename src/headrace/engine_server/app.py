"""The engine server as one raw ASGI app: routes matched, callers checked, errors written.

OpenAI's own generating routes, the models and the probes are here; each other API has a module.
"""

from importlib.metadata import version

import msgspec

from headrace.engine_server.admin_app import AdminApp
from headrace.engine_server.dispatch import Dispatcher
from headrace.engine_server.embedding_routes import EmbeddingRoutes, Encoder
from headrace.engine_server.engine_status import EngineState
from headrace.engine_server.generating import Generating
from headrace.engine_server.kv_events import KvEventRoutes
from headrace.engine_server.messages_routes import MessagesRoutes
from headrace.engine_server.metrics import Timings, metrics_text
from headrace.engine_server.model_routes import ModelRoutes
from headrace.engine_server.ollama_routes import OllamaRoutes, ollama_error
from headrace.engine_server.openapi import openapi_document
from headrace.engine_server.operator import Operator
from headrace.engine_server.operator_routes import OperatorRoutes
from headrace.engine_server.response_routes import ResponseRoutes
from headrace.engine_server.routes import Access, Call, Route, RouteTable
from headrace.engine_server.service import ModelService
from headrace.engine_server.token_routes import TokenRoutes
from headrace.http.asgi import (
    Receive,
    Scope,
    Send,
    header,
    send_bytes,
    send_json,
)
from headrace.observability.metrics import (
    content_type,
    openmetrics_content_type,
    reads_openmetrics,
)
from headrace.observability.tracing import Tracer
from headrace.protocol.errors import error_body
from headrace.protocol.parsing import (
    parse_chat_request,
    parse_completion_request,
)
from headrace.protocol.requests import ChatRequest, CompletionRequest

_encode = msgspec.json.Encoder().encode


class EngineServerApp:
    """Everything that one model service answers."""

    def __init__(
        self,
        service: ModelService,
        api_key: str | None,
        encoder: Encoder | None = None,
        *,
        tracer: Tracer | None = None,
    ) -> None:
        """With an `api_key` the caller is taken for the gateway: its request ids are kept.

        `encoder` is there where the model makes embeddings."""
        self._service = service
        self._timings = Timings()
        self._is_traced = tracer is not None
        self._generating = Generating(
            service, self._timings, trusts_callers=api_key is not None, tracer=tracer
        )
        self.table = RouteTable(
            [
                Route(
                    "POST",
                    "/v1/chat/completions",
                    self._chat,
                    summary="OpenAI's chat",
                    request=ChatRequest,
                ),
                Route(
                    "POST",
                    "/v1/completions",
                    self._completions,
                    summary="OpenAI's text completion",
                    request=CompletionRequest,
                ),
                *ResponseRoutes(self._generating).routes(),
                *MessagesRoutes(self._generating).routes(),
                *OllamaRoutes(self._generating).routes(),
                *EmbeddingRoutes(self._generating, encoder).routes(),
                *TokenRoutes(self._generating).routes(),
                *OperatorRoutes(self._generating).routes(),
                *KvEventRoutes(service.engine).routes(),
                *ModelRoutes(service).routes(),
                Route("GET", "/openapi.json", self._openapi, summary="This document"),
                Route("GET", "/metrics", self._metrics, summary="Prometheus metrics"),
                Route("GET", "/livez", self._livez, Access.PUBLIC, summary="Whether it runs"),
                Route("GET", "/readyz", self._readyz, Access.PUBLIC, summary="Whether it serves"),
                Route("GET", "/health", self._health, Access.PUBLIC, summary="The same, briefly"),
            ]
        )
        self._dispatcher = Dispatcher(
            self.table,
            api_key,
            unmatched_error=lambda path: ollama_error if path.startswith("/api/") else error_body,
            on_disconnect=self._count_disconnect,
        )

    def drain(self) -> None:
        """Refuse new requests from now on; running ones are left to end."""
        self._generating.is_draining = True

    def admin(self, key: str) -> AdminApp:
        """What the operator's own listener serves, to whoever has this key."""
        return AdminApp(Operator(self._generating), key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        await self._dispatcher.serve(scope, receive, send)

    def _count_disconnect(self) -> None:
        self._timings.disconnect_count += 1

    # Generating.

    async def _chat(self, call: Call) -> None:
        generating = self._generating
        generating.check_accepting()
        request = parse_chat_request(await call.body(), trusted=generating.trusts_callers)
        await generating.answer(request, generating.caller(call.scope), call.receive, call.send)

    async def _completions(self, call: Call) -> None:
        generating = self._generating
        generating.check_accepting()
        request = parse_completion_request(await call.body(), trusted=generating.trusts_callers)
        await generating.answer(request, generating.caller(call.scope), call.receive, call.send)

    # Asking.

    async def _openapi(self, call: Call) -> None:
        document = openapi_document(self.table.routes, version("headrace"))
        await send_json(call.send, 200, _encode(document))

    async def _metrics(self, call: Call) -> None:
        service = self._service
        with_exemplars = self._is_traced and reads_openmetrics(header(call.scope, b"accept"))
        text = await metrics_text(
            service.engine,
            service.usage,
            self._timings,
            service.config.served_name,
            wall_s=service.clock.wall_s(),
            planned_bytes=service.config.planned_bytes,
            with_exemplars=with_exemplars,
        )
        kind = openmetrics_content_type if with_exemplars else content_type
        await send_bytes(call.send, 200, text, [(b"content-type", kind)])

    # Probes.

    async def _livez(self, call: Call) -> None:
        await send_json(call.send, 200, b'{"state":"live"}')

    async def _readyz(self, call: Call) -> None:
        status = self._service.engine.status
        state = "draining" if self._generating.is_draining else status.state.value
        if state == EngineState.READY and not self._service.is_ready:
            state = EngineState.LOADING.value
        body = _encode({"state": state, "progress": status.progress, "detail": status.detail})
        if state == EngineState.READY:
            await send_json(call.send, 200, body)
        else:
            await send_json(call.send, 503, body, [(b"retry-after", b"2")])

    async def _health(self, call: Call) -> None:
        ready = self._service.is_ready and not self._generating.is_draining
        await send_bytes(call.send, 200 if ready else 503, b"", [])
