"""The engine server as one raw ASGI app: routes matched, callers checked, errors written.

OpenAI's own generating routes, the models and the probes are here; each other API has a module.
"""

import hmac
import logging
from collections.abc import Callable
from importlib.metadata import version

import msgspec

from headrace.base.errors import (
    AuthenticationFailed,
    ClientClosed,
    HeadraceError,
    PermissionDenied,
)
from headrace.engine_server.embedding_routes import EmbeddingRoutes, Encoder
from headrace.engine_server.engine_status import EngineState
from headrace.engine_server.generating import Generating
from headrace.engine_server.kv_events import KvEventRoutes
from headrace.engine_server.messages_routes import MessagesRoutes
from headrace.engine_server.metrics import Timings, metrics_text
from headrace.engine_server.ollama_routes import OllamaRoutes, ollama_error
from headrace.engine_server.openapi import openapi_document
from headrace.engine_server.operator_routes import OperatorRoutes
from headrace.engine_server.response_routes import ResponseRoutes
from headrace.engine_server.routes import Access, Call, Route, RouteTable
from headrace.engine_server.service import ModelService
from headrace.engine_server.token_routes import TokenRoutes
from headrace.http.asgi import (
    Receive,
    Scope,
    Send,
    error_headers,
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
    supported_parameters,
)
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.protocol.responses import ModelCard, ModelList

log = logging.getLogger(__name__)
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
        self._api_key = None if api_key is None else api_key.encode()
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
                Route("GET", "/v1/models", self._models, summary="The model that is served"),
                Route("GET", "/v1/models/{model...}", self._model, summary="The same by name"),
                Route("GET", "/openapi.json", self._openapi, summary="This document"),
                Route("GET", "/metrics", self._metrics, summary="Prometheus metrics"),
                Route("GET", "/livez", self._livez, Access.PUBLIC, summary="Whether it runs"),
                Route("GET", "/readyz", self._readyz, Access.PUBLIC, summary="Whether it serves"),
                Route("GET", "/health", self._health, Access.PUBLIC, summary="The same, briefly"),
            ]
        )

    def drain(self) -> None:
        """Refuse new requests from now on; running ones are left to end."""
        self._generating.is_draining = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        is_ollamas = scope["path"].startswith("/api/")  # also where no route is matched
        write_error: Callable[[HeadraceError], bytes] = ollama_error if is_ollamas else error_body
        try:
            route, values = self.table.match(scope["method"], scope["path"])
            write_error = route.error_body
            self._authenticate(route, scope)
            await route.handler(Call(scope, receive, send, values))
        except ClientClosed:
            self._timings.disconnect_count += 1
        except HeadraceError as error:
            await send_json(send, error.http_status, write_error(error), error_headers(error))
        except Exception:
            log.exception("request failed: %s %s", scope["method"], scope["path"])
            unexpected = HeadraceError("The server failed on this request; its log says why.")
            await send_json(send, 500, write_error(unexpected))

    def _authenticate(self, route: Route, scope: Scope) -> None:
        if route.access is Access.PUBLIC:
            return
        if self._api_key is None:
            if route.access is Access.OPERATOR:
                raise PermissionDenied(
                    "This route is for the operator: start the server with a key in "
                    "HEADRACE_API_KEY, and send it."
                )
            return
        kind, _, key = (header(scope, b"authorization") or "").partition(" ")
        if kind.lower() != "bearer":  # Anthropic's clients have a header of their own
            key = header(scope, b"x-api-key") or ""
        if not hmac.compare_digest(key.strip().encode("latin-1"), self._api_key):
            raise AuthenticationFailed(
                "This server asks for its API key: send `Authorization: Bearer KEY`."
            )

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

    async def _models(self, call: Call) -> None:
        await send_json(call.send, 200, _encode(ModelList([await self._card()])))

    async def _model(self, call: Call) -> None:
        self._service.check_name(call.values["model"])
        await send_json(call.send, 200, _encode(await self._card()))

    async def _card(self) -> ModelCard:
        service = self._service
        ready = service.engine.ready
        dialect = service.known_dialect
        facts = await service.facts() if ready is not None else None
        embeds = ready is not None and ready.dimensions is not None
        tools = dialect.tool_format if dialect else None
        reasoning = dialect.reasoning if dialect else None
        return ModelCard(
            id=service.config.served_name,
            created=int(service.created_wall_s),
            object="model",
            owned_by="headrace",
            max_model_len=None if ready is None else ready.context_length,
            root=service.config.served_name,
            modalities=["text"],
            quantization=facts.quantization if facts else None,
            supported_parameters=[] if embeds else list(supported_parameters),
            tool_parser=tools.name if tools else None,
            reasoning_parser=reasoning.name if reasoning else None,
        )

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
