"""One ASGI request through a route table: matched, its caller checked, its errors written."""

import hmac
import logging
from collections.abc import Callable

from headrace.base.errors import (
    AuthenticationFailed,
    ClientClosed,
    HeadraceError,
    PermissionDenied,
)
from headrace.engine_server.routes import Access, Call, Route, RouteTable
from headrace.http.asgi import Receive, Scope, Send, error_headers, header, send_json

log = logging.getLogger(__name__)
ErrorWriter = Callable[[HeadraceError], bytes]


class Dispatcher:
    """Serves the routes of a table to whoever has the key."""

    def __init__(
        self,
        table: RouteTable,
        key: str | None,
        *,
        unmatched_error: Callable[[str], ErrorWriter],
        on_disconnect: Callable[[], None],
    ) -> None:
        """`unmatched_error` writes what happens before a route is found, by the path."""
        self._table = table
        self._key = None if key is None else key.encode()
        self._unmatched_error = unmatched_error
        self._on_disconnect = on_disconnect

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        write_error = self._unmatched_error(scope["path"])
        try:
            route, values = self._table.match(scope["method"], scope["path"])
            write_error = route.error_body
            self._authenticate(route, scope)
            await route.handler(Call(scope, receive, send, values))
        except ClientClosed:
            self._on_disconnect()
        except HeadraceError as error:
            await send_json(send, error.http_status, write_error(error), error_headers(error))
        except Exception:
            log.exception("request failed: %s %s", scope["method"], scope["path"])
            unexpected = HeadraceError("The server failed on this request; its log says why.")
            await send_json(send, 500, write_error(unexpected))

    def _authenticate(self, route: Route, scope: Scope) -> None:
        if route.access is Access.PUBLIC:
            return
        if self._key is None:
            if route.access is Access.OPERATOR:
                raise PermissionDenied(
                    "This route is for the operator: start the server with a key in "
                    "HEADRACE_API_KEY, and send it."
                )
            return
        kind, _, key = (header(scope, b"authorization") or "").partition(" ")
        if kind.lower() != "bearer":  # Anthropic's clients have a header of their own
            key = header(scope, b"x-api-key") or ""
        if not hmac.compare_digest(key.strip().encode("latin-1"), self._key):
            raise AuthenticationFailed(
                "This server asks for its API key: send `Authorization: Bearer KEY`."
            )
