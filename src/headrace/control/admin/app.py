"""The admin API as one ASGI application: routes, the guard around them, errors in one shape."""

import asyncio
import functools
import logging
from collections.abc import Collection
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import (
    HeadraceError,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
)
from headrace.control.admin import (
    accounts,
    audit,
    billing,
    costs,
    deployments,
    events,
    explain,
    goodput,
    invoices,
    keys,
    limits,
    manifest,
    models,
    nodes,
    overview,
    payments,
    prices,
    projects,
    reconciliations,
    repricing,
    requests,
    rollouts,
    service_accounts,
    session_routes,
    sign_in_routes,
    single_sign_on_routes,
    tenants,
    terms,
    usage,
    versions,
    wallets,
    webhooks,
)
from headrace.control.admin.access import for_everyone_signed_in
from headrace.control.admin.context import AdminContext, Context, context_key
from headrace.control.admin.credentials import ActorReader, AdminCredentials
from headrace.control.admin.errors import error_answer, invalid_request
from headrace.control.admin.guard import AdminGuard, loopback_hosts, no_credential
from headrace.control.admin.managed import mount
from headrace.control.admin.single_sign_on import SingleSignOn
from headrace.control.insight import Insight
from headrace.control.nodes.node_loop import NodeLoop
from headrace.control.payments.provider import PaymentProvider
from headrace.http.egress import EgressPolicy, no_hosts_allowed
from headrace.launchers.protocol import Launcher
from headrace.storage.database import Database

logger = logging.getLogger(__name__)

route_modules = (
    tenants,
    projects,
    keys,
    models,
    versions,
    deployments,
    rollouts,
    explain,
    nodes,
    limits,
    overview,
    goodput,
    events,
    manifest,
    usage,
    requests,
    invoices,
    terms,
    billing,
    costs,
    payments,
    prices,
    reconciliations,
    repricing,
    wallets,
    accounts,
    service_accounts,
    audit,
    webhooks,
    session_routes,
    sign_in_routes,
    single_sign_on_routes,
)
public_modules = (sign_in_routes, single_sign_on_routes)  # answer also whoever has no credential
prefix = "/admin/v1"
body_bytes_max = 1 << 20  # the largest body is a price book of ten thousand models


def create_admin_app(
    database: Database,
    admin_token: str,
    *,
    pepper: bytes,
    clock: Clock | None = None,
    allowed_hosts: Collection[str] = (),
    gateway_url: str | None = None,
    single_sign_on: SingleSignOn | None = None,
    insight: Insight | None = None,
    node_loop: NodeLoop | None = None,
    launcher: Launcher | None = None,
    egress: EgressPolicy = no_hosts_allowed,
    payment_provider: PaymentProvider | None = None,
    closing: asyncio.Event | None = None,
) -> ASGIApp:
    """The admin API over `database`, for the bearer of `admin_token`.

    `pepper` is the server's secret for the keys that are made here. `allowed_hosts` are the names
    besides loopback's that a Host header may carry, without a port. `gateway_url` is where
    customers reach the gateway, for the console's examples; `single_sign_on` is an identity
    provider to sign in at, `egress` says where webhooks may lead, `payment_provider` takes money;
    `closing` ends what is sent for as long as somebody listens. Every route works in a thread,
    because the store waits for its disk."""
    context = AdminContext(
        database=database,
        credentials=AdminCredentials(admin_token, clock or SystemClock()),
        pepper=pepper,
        clock=clock or SystemClock(),
        gateway_url=gateway_url,
        single_sign_on=single_sign_on,
        insight=insight,
        nodes=node_loop,
        launcher=launcher,
        egress=egress,
        payment_provider=payment_provider,
        closing=closing or asyncio.Event(),
    )
    return AdminGuard(
        Frame(build_api(), context),
        Frame(build_public_api(), context),
        context.credentials,
        ActorReader(database.store, pepper, context.clock),
        {*loopback_hosts, *allowed_hosts},
    )


@functools.cache
def build_api() -> FastAPI:
    """Every route, for callers whom the guard made out; it serves whichever context comes with a
    request."""
    app = new_application(openapi_url=f"{prefix}/openapi.json")
    for module in route_modules:
        mount(app, module.router, prefix)
    mount(app, status_router, prefix)
    app.add_exception_handler(HTTPException, answer_routing_error)
    return app


@functools.cache
def build_public_api() -> FastAPI:
    """The routes by which one becomes a caller; any other path is a missing credential."""
    app = new_application(openapi_url=None)
    for module in public_modules:
        app.include_router(module.router, prefix=prefix)
    app.add_exception_handler(HTTPException, answer_stranger)
    return app


def new_application(openapi_url: str | None) -> FastAPI:
    """An application without routes, which answers errors in our shape."""
    app = FastAPI(
        title="headrace admin API",
        version=version("headrace"),
        docs_url=None,  # its pages load scripts from elsewhere; the schema is what programs need
        redoc_url=None,
        openapi_url=openapi_url,
        max_body_size=body_bytes_max,
    )
    app.add_exception_handler(HeadraceError, answer_operating_error)
    app.add_exception_handler(RequestValidationError, answer_validation_error)
    app.add_exception_handler(Exception, answer_unexpected_error)
    return app


class StatusView(BaseModel):
    """Which headrace this is, what it works with, and a number that grows with every change."""

    version: str
    revision: int
    gateway_url: str | None
    payment_provider: str | None  # null: nobody takes money by one


status_router = APIRouter()


@status_router.get("/status")
@for_everyone_signed_in
def show_status(context: Context) -> StatusView:
    """Say that the control plane answers, and how far its store is."""
    return StatusView(
        version=version("headrace"),
        revision=context.database.store.revision(),
        gateway_url=context.gateway_url,
        payment_provider=None
        if context.payment_provider is None
        else context.payment_provider.name,
    )


class Frame:
    """ASGI middleware for what holds for every request: it brings what its route works with, its
    body is not huge, and its answer is never cached."""

    def __init__(self, app: ASGIApp, context: AdminContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, unless the announced body is too large; bodies without a length are counted by
        FastAPI as they come."""

        async def send_uncached(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers["cache-control"] = "no-store"
                headers["x-content-type-options"] = "nosniff"
                message = {**message, "headers": headers.raw}
            await send(message)

        if scope["type"] == "http":
            length = Headers(scope=scope).get("content-length", "0")
            if length.isdecimal() and int(length) > body_bytes_max:
                await error_answer(body_too_large())(scope, receive, send_uncached)
                return
        await self._app({**scope, context_key: self._context}, receive, send_uncached)


def body_too_large() -> PayloadTooLarge:
    """The error for a body over the limit."""
    return PayloadTooLarge(f"the body is over {body_bytes_max:,} bytes; send less at once")


async def answer_operating_error(request: Request, error: Exception) -> Response:
    """Report an error that was foreseen."""
    assert isinstance(error, HeadraceError)
    return error_answer(error)


async def answer_validation_error(request: Request, error: Exception) -> Response:
    """Report what is wrong with the caller's values."""
    assert isinstance(error, RequestValidationError)
    return error_answer(invalid_request(error.errors()))


async def answer_routing_error(request: Request, error: Exception) -> Response:
    """Report a path or method that does not exist, or a body that can't be read."""
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            return error_answer(
                NotFound(f"there is nothing at this path; the routes are in {prefix}/openapi.json")
            )
        case 413:
            return error_answer(body_too_large())
        case _:
            taken = "this path does not take that method; see the allow header"
            message = taken if error.status_code == 405 else str(error.detail)
            answer = error_answer(InvalidRequest(message))
            answer.status_code = error.status_code
            answer.headers.update(error.headers or {})
            return answer


async def answer_stranger(request: Request, error: Exception) -> Response:
    """Report to a caller without a credential that it takes one, whatever they asked for."""
    assert isinstance(error, HTTPException)
    return error_answer(body_too_large() if error.status_code == 413 else no_credential())


async def answer_unexpected_error(request: Request, error: Exception) -> Response:
    """The edge: an unforeseen error is logged by the server and told without its content."""
    route = getattr(request.scope.get("route"), "path", "no route")  # a path may hold anything
    logger.error("unexpected error in %s", route, exc_info=error)
    return error_answer(HeadraceError("an unexpected error; the control plane's log has it"))
