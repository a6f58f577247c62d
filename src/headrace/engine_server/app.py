"""The engine server's routes as one raw ASGI app; every route but the probes asks for the key.

Authentication is a property of the matched route, and the default is to ask.
"""

import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from headrace.base.errors import (
    AuthenticationFailed,
    ClientClosed,
    HeadraceError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from headrace.base.ids import new_id
from headrace.engine_server.answers import Answer, Caller, GeneratingRequest
from headrace.engine_server.engine_client import EngineState
from headrace.engine_server.metrics import Timings, metrics_text
from headrace.engine_server.service import ModelService
from headrace.http.asgi import (
    Receive,
    Scope,
    Send,
    error_headers,
    header,
    read_body,
    send_bytes,
    send_json,
)
from headrace.observability.metrics import content_type
from headrace.protocol.errors import error_body
from headrace.protocol.parsing import parse_chat_request, parse_completion_request
from headrace.protocol.responses import ModelCard, ModelList

# Far above the longest context as text; a gateway takes 10 MB and adds its own fields.
body_bytes_max = 10 * 1024 * 1024 + 64 * 1024
usage_wait_s = 2.0
draining_retry_after_s = 1.0
usage_path = "/internal/usage/"
model_path = "/v1/models/"
request_id_pattern = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
cache_salt_length_max = 128

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path."""

    method: str
    handler: Handler
    public: bool = False  # answers without a key


class EngineServerApp:
    """OpenAI's API over one model service."""

    def __init__(self, service: ModelService, api_key: str | None) -> None:
        """With an `api_key` the caller is taken for the gateway: its request ids are kept."""
        self._service = service
        self._api_key = None if api_key is None else api_key.encode()
        self._timings = Timings()
        self._draining = False
        self._routes = {
            "/v1/chat/completions": Route("POST", self._chat),
            "/v1/completions": Route("POST", self._completions),
            "/v1/models": Route("GET", self._models),
            "/metrics": Route("GET", self._metrics),
            "/livez": Route("GET", self._livez, public=True),
            "/readyz": Route("GET", self._readyz, public=True),
            "/health": Route("GET", self._health, public=True),
        }
        self._prefix_routes = {
            usage_path: Route("GET", self._usage),
            model_path: Route("GET", self._model),
        }

    def drain(self) -> None:
        """Refuse new requests from now on; running ones are left to end."""
        self._draining = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        try:
            route = self._match(scope)
            if not route.public:
                self._authenticate(scope)
            await route.handler(scope, receive, send)
        except ClientClosed:
            self._timings.disconnect_count += 1
        except HeadraceError as error:
            await send_json(send, error.http_status, error_body(error), error_headers(error))
        except Exception:
            log.exception("request failed: %s %s", scope["method"], scope["path"])
            unexpected = HeadraceError("The server failed on this request; its log says why.")
            await send_json(send, 500, error_body(unexpected))

    def _match(self, scope: Scope) -> Route:
        path: str = scope["path"]
        route = self._routes.get(path)
        if route is None:
            for prefix, candidate in self._prefix_routes.items():
                if path.startswith(prefix):
                    route = candidate
        if route is None:
            raise NotFound(f"There is no {path!r} here; the API starts at /v1.")
        if scope["method"] != route.method and not (
            scope["method"] == "HEAD" and route.method == "GET"
        ):
            raise NotFound(f"{path!r} takes {route.method}, not {scope['method']}.")
        return route

    def _authenticate(self, scope: Scope) -> None:
        if self._api_key is None:
            return
        kind, _, key = (header(scope, b"authorization") or "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(
            key.strip().encode("latin-1"), self._api_key
        ):
            raise AuthenticationFailed(
                "This server asks for its API key: send `Authorization: Bearer KEY`."
            )

    # Generating.

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_accepting()
        body = await read_body(receive, body_bytes_max)
        request = parse_chat_request(body, trusted=self._api_key is not None)
        await self._answer(request, scope, receive, send)

    async def _completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_accepting()
        body = await read_body(receive, body_bytes_max)
        request = parse_completion_request(body, trusted=self._api_key is not None)
        await self._answer(request, scope, receive, send)

    def _check_accepting(self) -> None:
        if self._draining:
            raise Unavailable(
                "This server shuts down; try again on another one.",
                retry_after_s=draining_retry_after_s,
            )

    async def _answer(
        self, request: GeneratingRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        answer = Answer(self._service, self._timings, request, self._caller(scope))
        await answer.send(receive, send)

    def _caller(self, scope: Scope) -> Caller:
        """The request id and cache salt: the gateway's, which has the key; else made and none."""
        sent_id = header(scope, b"x-request-id")
        if self._api_key is None or sent_id is None:
            request_id = new_id("req", self._service.clock)
        elif request_id_pattern.fullmatch(sent_id):
            request_id = sent_id
        else:
            raise InvalidRequest(
                "The request id has 1 to 128 letters, digits and . : _ -", param="X-Request-Id"
            )
        if self._api_key is None:
            return Caller(request_id)
        cache_salt = header(scope, b"x-headrace-cache-salt") or ""
        if len(cache_salt) > cache_salt_length_max:
            raise InvalidRequest("The cache salt is too long.", param="X-Headrace-Cache-Salt")
        return Caller(request_id, cache_salt)

    # Asking.

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, _encode(ModelList([self._card()])))

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].removeprefix(model_path)
        if name != self._service.config.served_name:
            raise NotFound(
                f"This server has no model {name!r}; it serves "
                f"{self._service.config.served_name!r}.",
                param="model",
            )
        await send_json(send, 200, _encode(self._card()))

    def _card(self) -> ModelCard:
        ready = self._service.engine.ready
        return ModelCard(
            id=self._service.config.served_name,
            created=int(self._service.created_wall_s),
            object="model",
            owned_by="headrace",
            max_model_len=None if ready is None else ready.context_length,
        )

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        text = await metrics_text(
            service.engine, service.usage, self._timings, service.config.served_name
        )
        await send_bytes(send, 200, text, [(b"content-type", content_type)])

    async def _usage(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope["path"].removeprefix(usage_path)
        ended = await self._service.usage.find(request_id, usage_wait_s)
        await send_json(send, 200, _encode(ended))

    # Probes.

    async def _livez(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, b'{"state":"live"}')

    async def _readyz(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = self._service.engine.status
        state = "draining" if self._draining else status.state.value
        if state == EngineState.READY and not self._service.is_ready:
            state = EngineState.LOADING.value
        body = _encode({"state": state, "progress": status.progress, "detail": status.detail})
        if state == EngineState.READY:
            await send_json(send, 200, body)
        else:
            await send_json(send, 503, body, [(b"retry-after", b"2")])

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 200 if self._service.is_ready and not self._draining else 503
        await send_bytes(send, status, b"", [])
