"""The one door of the admin API: whatever the path or method, no credential means no answer.

It wraps the whole application and never looks at the path, so that there is no list of public
routes to get wrong and no way to disguise one route as another. In order: the Host header must name
this listener (a page that rebinds its own name to our address fails here), then the caller must
present the admin token, or a console session together with the console's header, which a page of
another origin can't add without a preflight that we never answer.
"""

import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.base.errors import AuthenticationFailed, HeadraceError, PermissionDenied
from headrace.control.admin.credentials import AdminCredentials
from headrace.control.admin.errors import error_answer

session_cookie = "headrace_console"
console_header = "x-headrace-console"
host_pattern = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")
loopback_hosts = frozenset({"127.0.0.1", "localhost", "[::1]"})


class AdminGuard:
    """ASGI middleware that lets only authenticated requests through."""

    def __init__(
        self, app: ASGIApp, credentials: AdminCredentials, allowed_hosts: Collection[str]
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it; start-up and shutdown pass."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket; there is none here
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(Headers(scope=scope))
        if refusal is not None:
            await error_answer(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> HeadraceError | None:
        hosts = headers.getlist("host")
        match = host_pattern.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None or match[1].lower() not in self._allowed_hosts:
            return PermissionDenied(
                "the Host header does not name this listener; call it by the address that "
                "`headrace up` printed, or start it with that name allowed"
            )
        if self._bearer_is_admin(headers) or self._session_is_open(headers):
            return None
        return AuthenticationFailed(
            "the admin API needs `Authorization: Bearer <admin token>`; "
            "`headrace up` writes the token to run/admin.json in its data directory"
        )

    def _bearer_is_admin(self, headers: Headers) -> bool:
        values = headers.getlist("authorization")
        if len(values) != 1:
            return False
        scheme, _, token = values[0].partition(" ")
        return scheme.lower() == "bearer" and self._credentials.token_matches(token.strip())

    def _session_is_open(self, headers: Headers) -> bool:
        if console_header not in headers or "authorization" in headers:
            return False
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        cookies = cookie_parser(headers.get("cookie", ""))
        return self._credentials.session_matches(cookies.get(session_cookie, ""))
