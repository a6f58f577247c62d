"""The gateway's routes as one raw ASGI app, and the edge where errors become answers."""

import logging
from collections.abc import Iterable
from importlib.metadata import version

from headrace.base.errors import AuthenticationFailed, ClientClosed, HeadraceError
from headrace.base.ids import new_id
from headrace.gateway.access_log import AccessRecord
from headrace.gateway.asked import GeneratingApi
from headrace.gateway.authenticate import Authenticator
from headrace.gateway.generating_routes import GeneratingRoutes
from headrace.gateway.media_api import media_takes
from headrace.gateway.model_routes import ModelRoutes
from headrace.gateway.openapi import openapi_document
from headrace.gateway.platform_routes import PlatformRoutes
from headrace.gateway.probe_routes import ProbeRoutes
from headrace.gateway.route_table import Access, Call, ErrorBody, Route, RouteTable, answer_error
from headrace.gateway.snapshot import Principal
from headrace.gateway.state import GatewayState
from headrace.http.asgi import Receive, Scope, Send
from headrace.http.callers import bearer_of, is_local
from headrace.protocol.errors import error_body
from headrace.spec.platform_token import is_metrics_token, is_platform_token

log = logging.getLogger(__name__)


class GatewayApp:
    """Every API of the gateway, over every model of the platform."""

    def __init__(
        self, state: GatewayState, apis: Iterable[GeneratingApi], more: Iterable[Route] = ()
    ) -> None:
        """`apis` cost tokens; `more` are routes of what the gateway keeps for its callers."""
        self._state = state
        self._authenticator = Authenticator(state.pepper, state.trusted_proxies)
        self._probes = ProbeRoutes(state)
        self._table = RouteTable(
            (
                *GeneratingRoutes(state, apis, media_takes).routes,
                *ModelRoutes(state).routes,
                *more,
                *self._probes.routes,
                *PlatformRoutes(state).routes,
                Route("/openapi.json", "GET", self._openapi),
            )
        )

    @property
    def routes(self) -> tuple[Route, ...]:
        """Every route, for the reference page and for tests that walk them."""
        return self._table.routes

    def drain(self) -> None:
        """Be unready from now on; what runs is left to end."""
        self._probes.draining = True

    def cut(self) -> None:
        """End what is made apart from its connections, as the server ends the rest."""
        self._state.replays.cut()

    async def _openapi(self, call: Call) -> None:
        await call.answer_value(openapi_document(self.routes, version("headrace")))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        state = self._state
        started_s = state.clock.monotonic_s()
        record = AccessRecord(time=state.clock.wall_s(), request_id=new_id("req", state.clock))
        shape: ErrorBody = error_body
        is_routine = False
        try:
            route, parameter = self._table.match(scope)
            record.route, shape = route.name, route.error_body
            is_routine = route.access is not Access.KEY
            caller = await self._authenticated(route, scope, record)
            await route.handler(Call(scope, receive, send, record, caller, parameter))
        except ClientClosed as error:
            record.status, record.error = error.http_status, error.code
        except HeadraceError as error:
            await answer_error(send, record, error, shape=shape)
        except Exception:
            log.exception("request %s failed", record.request_id)
            unexpected = HeadraceError(
                f"The gateway failed on this request; its log says why, under {record.request_id}."
            )
            await answer_error(send, record, unexpected, shape=shape)
        finally:
            duration_s = state.clock.monotonic_s() - started_s
            record.duration_ms = round(duration_s * 1000, 2)
            state.counters.answers[record.status] += 1
            if record.outcome is not None:
                state.counters.duration_s.observe(duration_s, record.trace_id or "")
            if not is_routine or record.status >= 400:  # probes and polls would fill the log
                state.access_log.write(record)

    async def _authenticated(
        self, route: Route, scope: Scope, record: AccessRecord
    ) -> Principal | None:
        if route.access is Access.PUBLIC:
            return None
        state = self._state
        if route.access is Access.METRICS:
            check_scraper(scope, state.pepper)
            return None
        if route.access is Access.PLATFORM:
            check_platform(scope, state.pepper)
            return None
        principal = await self._principal(scope)
        record.key_id = principal.key.id
        record.project_id = principal.project.id
        record.tenant_id = principal.tenant.id
        return principal

    async def _principal(self, scope: Scope) -> Principal:
        """Whose key it is; the store is looked at before one is refused, as it may be new.

        That is the same for every wrong key, so its time tells nothing of why it is wrong."""
        state, keys = self._state, self._authenticator
        try:
            return keys.authenticate(scope, state.follower.snapshot, state.clock.wall_s())
        except AuthenticationFailed:
            if not keys.may_be_new(scope):
                raise
        await state.follower.refresh()
        return keys.authenticate(scope, state.follower.snapshot, state.clock.wall_s())


def check_scraper(scope: Scope, pepper: bytes) -> None:
    """AuthenticationFailed unless a program of this machine asks, or showed the metrics token."""
    if not is_local(scope) and not is_metrics_token(pepper, bearer_of(scope)):
        raise AuthenticationFailed(
            "Metrics are for programs of this machine, and for whoever shows what "
            "`headrace metrics token` prints."
        )


def check_platform(scope: Scope, pepper: bytes) -> None:
    """AuthenticationFailed unless the platform's own token was shown."""
    if not is_platform_token(pepper, bearer_of(scope)):
        raise AuthenticationFailed("This route is for the control plane of this platform.")
