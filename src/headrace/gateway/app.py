"""The gateway's routes as one raw ASGI app, and the edge where errors become answers.

Authentication is a property of the matched route object, and the default is to ask. A path is
matched as a whole and never looked at again.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import AuthenticationFailed, ClientClosed, HeadraceError, NotFound
from headrace.base.ids import new_id
from headrace.gateway import idempotency
from headrace.gateway.access_log import AccessLog, AccessRecord
from headrace.gateway.authenticate import Authenticator
from headrace.gateway.follower import SnapshotFollower
from headrace.gateway.generate import GeneratingRoute, Generation, GenerationServices
from headrace.gateway.idempotency import Replays
from headrace.gateway.metrics import GatewayCounters, GatewayGauges, metrics_text
from headrace.gateway.priorities import priority_of
from headrace.gateway.snapshot import Principal, ServedModel
from headrace.http.asgi import (
    Header,
    Receive,
    Scope,
    Send,
    error_headers,
    header,
    read_body,
    send_bytes,
    send_json,
)
from headrace.http.server import is_loopback
from headrace.ledger.journal import Journal
from headrace.ledger.reservation import Outcome
from headrace.observability.metrics import content_type
from headrace.protocol.errors import error_body
from headrace.protocol.parsing import parse_chat_request, parse_completion_request
from headrace.protocol.responses import ModelCard, ModelList
from headrace.router.decision_log import decisions_max
from headrace.router.endpoint_set import EndpointSet
from headrace.spec.platform_token import is_platform_token

body_bytes_max = 10 * 1024 * 1024
model_prefix = "/v1/models/"
decisions_prefix = "/internal/decisions/"
signals_path = "/internal/signals"

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class Access(Enum):
    """Who may ask a route."""

    KEY = "key"  # whoever has a valid API key
    LOCAL_OR_KEY = "local or key"  # this machine, or a key
    PLATFORM = "platform"  # the control plane
    PUBLIC = "public"


@dataclass(slots=True)
class Call:
    """One request on its way through a handler."""

    scope: Scope
    receive: Receive
    send: Send
    record: AccessRecord
    caller: Principal | None  # None on routes that ask for no key

    @property
    def principal(self) -> Principal:
        """The caller of a route that asks for a key."""
        assert self.caller is not None, "the route does not authenticate"
        return self.caller

    async def answer(self, status: int, body: bytes) -> None:
        """Send JSON."""
        self.record.status = status
        await send_json(
            self.send, status, body, [(b"x-request-id", self.record.request_id.encode())]
        )


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path."""

    name: str  # as the log and the reference page call it
    method: str
    handler: Callable[[Call], Awaitable[None]]
    access: Access = Access.KEY


@dataclass(frozen=True, slots=True)
class GatewayState:
    """What the routes answer from."""

    follower: SnapshotFollower
    endpoints: EndpointSet
    journal: Journal
    services: GenerationServices
    replays: Replays
    counters: GatewayCounters
    access_log: AccessLog
    clock: Clock
    pepper: bytes


class GatewayApp:
    """OpenAI's API over every model of the platform."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._authenticator = Authenticator(state.pepper)
        self._draining = False
        chat = GeneratingRoute("/v1/chat/completions", parse_chat_request)
        completions = GeneratingRoute("/v1/completions", parse_completion_request)
        routes = (
            Route(chat.path, "POST", self._generating(chat)),
            Route(completions.path, "POST", self._generating(completions)),
            Route("/v1/models", "GET", self._models),
            Route("/metrics", "GET", self._metrics, Access.LOCAL_OR_KEY),
            Route(signals_path, "GET", self._signals, Access.PLATFORM),
            Route("/livez", "GET", self._livez, Access.PUBLIC),
            Route("/readyz", "GET", self._readyz, Access.PUBLIC),
            Route("/health", "GET", self._health, Access.PUBLIC),
        )
        self._routes = {route.name: route for route in routes}
        self._model_route = Route("/v1/models/{model}", "GET", self._model)
        self._decision_route = Route(
            decisions_prefix + "{request_id}", "GET", self._decisions, Access.PLATFORM
        )

    @property
    def routes(self) -> tuple[Route, ...]:
        """Every route, for the reference page and for tests that walk them."""
        return (*self._routes.values(), self._model_route, self._decision_route)

    def drain(self) -> None:
        """Be unready from now on; what runs is left to end."""
        self._draining = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        state = self._state
        started_s = state.clock.monotonic_s()
        record = AccessRecord(time=state.clock.wall_s(), request_id=new_id("req", state.clock))
        try:
            await self._serve(scope, receive, send, record)
        except ClientClosed as error:
            record.status, record.error = error.http_status, error.code
        except HeadraceError as error:
            await answer_error(send, record, error)
        except Exception:
            log.exception("request %s failed", record.request_id)
            unexpected = HeadraceError(
                f"The gateway failed on this request; its log says why, under {record.request_id}."
            )
            await answer_error(send, record, unexpected)
        finally:
            duration_s = state.clock.monotonic_s() - started_s
            record.duration_ms = round(duration_s * 1000, 2)
            state.counters.answers[record.status] += 1
            if record.outcome is not None:
                state.counters.duration_s.observe(duration_s)
            state.access_log.write(record)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, record: AccessRecord
    ) -> None:
        route = self._match(scope)
        record.route = route.name
        call = Call(scope, receive, send, record, self._authenticated(route, scope, record))
        await route.handler(call)

    def _match(self, scope: Scope) -> Route:
        path: str = scope["path"]
        route = self._routes.get(path)
        if route is None and path.startswith(model_prefix):
            route = self._model_route
        if route is None and path.startswith(decisions_prefix):
            route = self._decision_route
        if route is None:
            raise NotFound("There is nothing at this path; the API starts at /v1.")
        if scope["method"] != route.method and (scope["method"], route.method) != ("HEAD", "GET"):
            raise NotFound(f"{route.name} takes {route.method} only.")
        return route

    def _authenticated(self, route: Route, scope: Scope, record: AccessRecord) -> Principal | None:
        if route.access is Access.PUBLIC:
            return None
        if route.access is Access.LOCAL_OR_KEY and is_local(scope):
            return None
        state = self._state
        if route.access is Access.PLATFORM:
            check_platform(scope, state.pepper)
            return None
        principal = self._authenticator.authenticate(
            scope, state.follower.snapshot, state.clock.wall_s()
        )
        record.key_id = principal.key.id
        record.project_id = principal.project.id
        record.tenant_id = principal.tenant.id
        return principal

    def _generating(self, route: GeneratingRoute) -> Callable[[Call], Awaitable[None]]:
        async def handle(call: Call) -> None:
            priority = priority_of(call.scope, call.principal.tenant)
            body = await read_body(call.receive, body_bytes_max)
            state = self._state
            generation = Generation(
                state.services, call.principal, state.follower.snapshot, call.record, priority
            )
            key = header(call.scope, idempotency.header_name)
            try:
                if key is None:
                    await generation.answer(route, body, call.receive, call.send)
                else:
                    await self._answer_once(route, generation, key, body, call)
            except ClientClosed:
                raise
            except HeadraceError as error:
                await answer_error(call.send, call.record, error, generation.standing_headers())

        return handle

    async def _answer_once(
        self, route: GeneratingRoute, generation: Generation, key: str, body: bytes, call: Call
    ) -> None:
        """Answer a request with an `Idempotency-Key`, which may be answered without running it."""
        is_gone = False

        async def make(receive: Receive, send: Send) -> bool:
            try:
                await generation.answer(route, body, receive, send)
                return call.record.outcome == Outcome.FINISHED.value
            finally:
                if is_gone:  # its line was written when its connection ended, without an outcome
                    self._state.access_log.write(call.record)

        replay_key = idempotency.ReplayKey(call.principal.key.id, key)
        fingerprint = idempotency.fingerprint_of(route.path, body)
        try:
            await self._state.replays.answer(replay_key, fingerprint, make, call.receive, call.send)
            call.record.status = 200
        finally:
            is_gone = True

    async def _models(self, call: Call) -> None:
        models = self._state.follower.snapshot.models.values()
        cards = [
            self._card(served) for served in models if call.principal.may_use(served.model.name)
        ]
        await call.answer(200, _encode(ModelList(cards)))

    async def _model(self, call: Call) -> None:
        name = call.scope["path"].removeprefix(model_prefix)
        served = self._state.follower.snapshot.models.get(name)
        if served is None or not call.principal.may_use(name):
            raise NotFound(
                f"There is no model {name!r} for this key; GET /v1/models lists them.",
                param="model",
            )
        await call.answer(200, _encode(self._card(served)))

    def _card(self, served: ServedModel) -> ModelCard:
        return ModelCard(
            id=served.model.name,
            created=int(served.model.create_time),
            object="model",
            owned_by="headrace",
            max_model_len=served.context_length
            or self._state.services.contexts.longest(served.pools),
        )

    async def _metrics(self, call: Call) -> None:
        state = self._state
        gauges = GatewayGauges(
            running_requests=state.services.admission.running_count(),
            room=state.services.forwarding.room,
            predictions=state.services.forwarding.picker.predictions,
            endpoints=state.endpoints,
            snapshot_age_s=state.follower.age_s,
            journal_healthy=state.journal.is_healthy,
            dropped_log_lines=state.access_log.dropped,
            now_s=state.clock.monotonic_s(),
        )
        call.record.status = 200
        text = metrics_text(state.counters, gauges)
        await send_bytes(call.send, 200, text, [(b"content-type", content_type)])

    async def _signals(self, call: Call) -> None:
        forwarding = self._state.services.forwarding
        view = forwarding.traffic.view(self._state.endpoints, forwarding.room)
        await call.answer(200, _encode(view))

    async def _decisions(self, call: Call) -> None:
        """How the router chose for one request, oldest attempt first."""
        request_id = call.scope["path"].removeprefix(decisions_prefix)
        log = self._state.services.forwarding.picker.log
        decisions = () if log is None else log.of(request_id)
        if not decisions:
            raise NotFound(
                f"This gateway knows no decision on {request_id!r}; it keeps the last "
                f"{decisions_max:,} requests."
            )
        await call.answer(200, _encode({"decisions": decisions}))

    async def _livez(self, call: Call) -> None:
        await call.answer(200, b'{"state":"live"}')

    async def _readyz(self, call: Call) -> None:
        detail = self._unready_reason()
        state = "draining" if self._draining else "unavailable" if detail else "ready"
        body = _encode({"state": state, "progress": None if detail else 1.0, "detail": detail})
        await call.answer(503 if detail else 200, body)

    async def _health(self, call: Call) -> None:
        await call.answer(503 if self._unready_reason() else 200, b"{}")

    def _unready_reason(self) -> str:
        """Why no request would be taken now; empty if it would."""
        if self._draining:
            return "this gateway shuts down"
        if not self._state.journal.is_healthy:
            return "the journal takes no reservations: its disk is full, slow or failing"
        return ""


async def answer_error(
    send: Send, record: AccessRecord, error: HeadraceError, extra: Iterable[Header] = ()
) -> None:
    """The error as OpenAI's clients expect it."""
    record.status, record.error = error.http_status, error.code
    headers = [*error_headers(error), *extra, (b"x-request-id", record.request_id.encode())]
    await send_json(send, error.http_status, error_body(error), headers)


def check_platform(scope: Scope, pepper: bytes) -> None:
    """AuthenticationFailed unless the platform's own token was shown."""
    presented = header(scope, b"authorization") or ""
    if not is_platform_token(pepper, presented.removeprefix("Bearer ")):
        raise AuthenticationFailed("This route is for the control plane of this platform.")


def is_local(scope: Scope) -> bool:
    """Whether the peer is this machine, and not a proxy on it that speaks for another."""
    client = scope.get("client")
    if client is None or not is_loopback(client[0]):
        return False
    return header(scope, b"x-forwarded-for") is None and header(scope, b"forwarded") is None
