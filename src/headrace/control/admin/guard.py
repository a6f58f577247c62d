"""The one door of the admin API: whatever the path or method, no credential means no answer.

It wraps the whole application and never looks at the path. In order: the Host header must name this
listener (a page that rebinds its own name to our address fails here), then whoever calls is made
out. Nobody gets the small application of public routes, sign-in and no more, in which every path
that it does not have is answered like a wrong credential. Everybody else gets the whole one, which
asks each route object what it needs. So there is no list of public paths to get wrong, and no way
to disguise one route as another.

A session's cookie counts only together with the console's header, which a page of another origin
can't add without a preflight that we never answer; besides, the cookie is same-site, and a request
that a browser says comes from elsewhere is refused.
"""

import asyncio
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.base.errors import AuthenticationFailed, HeadraceError, PermissionDenied
from headrace.control.admin.actors import Actor, token_actor
from headrace.control.admin.credentials import ActorReader, AdminCredentials
from headrace.control.admin.errors import error_answer
from headrace.spec.token_format import service_tokens

session_cookie = "headrace_console"
console_header = "x-headrace-console"
actor_key = "headrace.actor"  # in the scope of a request that is let through
host_pattern = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")
loopback_hosts = frozenset({"127.0.0.1", "localhost", "[::1]"})


class AdminGuard:
    """ASGI middleware that lets callers through as far as they are known."""

    def __init__(
        self,
        app: ASGIApp,
        public_app: ASGIApp,
        credentials: AdminCredentials,
        actors: ActorReader,
        allowed_hosts: Collection[str],
    ) -> None:
        self._app = app
        self._public_app = public_app
        self._credentials = credentials
        self._actors = actors
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it; start-up and shutdown pass."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket; there is none here
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            actor = await self._actor(headers)
        except HeadraceError as refusal:
            await error_answer(refusal)(scope, receive, send)
            return
        if actor is None:
            await self._public_app(scope, receive, send)
        else:
            await self._app({**scope, actor_key: actor}, receive, send)

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        match = host_pattern.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None or match[1].lower() not in self._allowed_hosts:
            raise PermissionDenied(
                "the Host header does not name this listener; call it by the address that "
                "`headrace up` printed, or start it with that name allowed"
            )

    async def _actor(self, headers: Headers) -> Actor | None:
        """Who calls; None if nobody says. AuthenticationFailed for a credential that is wrong."""
        if "authorization" not in headers:
            return await self._person(headers)
        actor = await self._bearer(headers)
        if actor is None:
            raise no_credential()
        return actor

    async def _bearer(self, headers: Headers) -> Actor | None:
        values = headers.getlist("authorization")
        if len(values) != 1:
            return None
        scheme, _, token = values[0].partition(" ")
        presented = token.strip()
        if scheme.lower() != "bearer":
            return None
        if self._credentials.token_matches(presented):
            return token_actor
        if service_tokens.parse(presented) is None:
            return None
        return await asyncio.to_thread(self._actors.of_service_token, presented)

    async def _person(self, headers: Headers) -> Actor | None:
        if console_header not in headers:
            return None
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return None
        if not _is_own_origin(headers):
            return None
        cookies = cookie_parser(headers.get("cookie", ""))
        subject_id = self._credentials.subject_of_session(cookies.get(session_cookie, ""))
        if subject_id is None or subject_id == token_actor.id:
            return None if subject_id is None else token_actor
        return await asyncio.to_thread(self._actors.of_subject, subject_id)


def _is_own_origin(headers: Headers) -> bool:
    """Whether the Origin header, which browsers add to changes, is this listener's own."""
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


def no_credential() -> AuthenticationFailed:
    """The same words for every missing or wrong credential."""
    return AuthenticationFailed(
        "the admin API needs `Authorization: Bearer <admin token>`; "
        "`headrace up` writes the token to run/admin.json in its data directory"
    )
