"""Which route a request is for; who may ask it is a property of the route, and the default is to
ask for a key.

A path is matched as a whole and never looked at again. A template has at most one parameter, and
of several that fit a path the longest counts.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from headrace.base.errors import HeadraceError, MethodNotAllowed, NotFound
from headrace.gateway.access_log import AccessRecord
from headrace.gateway.snapshot import Principal
from headrace.http.asgi import Header, Receive, Scope, Send, error_headers, send_json
from headrace.http.nearest_path import NearestPath
from headrace.protocol.errors import error_body

encode_json = msgspec.json.Encoder().encode


class Access(Enum):
    """Who may ask a route."""

    KEY = "key"  # whoever has a valid API key
    METRICS = "metrics"  # programs of this machine, or the metrics token
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
    parameter: str = ""  # what stands in the path for the template's parameter

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

    async def answer_value(self, value: object) -> None:
        """Send a value as JSON."""
        await self.answer(200, encode_json(value))


Handler = Callable[[Call], Awaitable[None]]
ErrorBody = Callable[[HeadraceError], bytes]


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path."""

    name: str  # the path's template, as the log and the reference page call it
    method: str
    handler: Handler
    access: Access = Access.KEY
    error_body: ErrorBody = error_body  # the shape in which this API's clients expect errors


class Pattern(NamedTuple):
    """A template with a parameter, cut at it."""

    prefix: str
    suffix: str
    routes: dict[str, Route]  # by method

    def parameter(self, path: str) -> str:
        """What stands for the parameter in this path; empty if the path does not fit."""
        end = len(path) - len(self.suffix)
        if path.startswith(self.prefix) and path.endswith(self.suffix):
            return path[len(self.prefix) : end]
        return ""


class RouteTable:
    """The routes by what they match."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._nearest = NearestPath(
            route.name for route in self.routes if route.access in (Access.KEY, Access.PUBLIC)
        )
        self._exact: dict[str, dict[str, Route]] = {}
        patterns: dict[str, Pattern] = {}
        for route in self.routes:
            prefix, brace, rest = route.name.partition("{")
            if brace:
                suffix = rest.partition("}")[2]
                by_method = patterns.setdefault(route.name, Pattern(prefix, suffix, {})).routes
            else:
                by_method = self._exact.setdefault(route.name, {})
            assert route.method not in by_method, f"{route.method} {route.name} stands twice"
            by_method[route.method] = route
        self._patterns = sorted(patterns.values(), key=lambda p: -len(p.prefix) - len(p.suffix))

    def match(self, scope: Scope) -> tuple[Route, str]:
        """The route of a request and its parameter; NotFound, MethodNotAllowed if none is."""
        path: str = scope["path"]
        by_method, parameter = self._exact.get(path), ""
        if by_method is None:
            for pattern in self._patterns:
                parameter = pattern.parameter(path)
                if parameter:
                    by_method = pattern.routes
                    break
            else:
                hint = self._nearest.hint(path)
                raise NotFound(f"There is nothing at this path; the API starts at /v1.{hint}")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = by_method.get(method)
        if route is None:
            known = next(iter(by_method.values())).name
            raise MethodNotAllowed(scope["method"], known, by_method)
        return route, parameter


async def answer_error(
    send: Send,
    record: AccessRecord,
    error: HeadraceError,
    extra: Iterable[Header] = (),
    shape: ErrorBody = error_body,
) -> None:
    """The error as the route's clients expect it."""
    record.status, record.error = error.http_status, error.code
    headers = [*error_headers(error), *extra, (b"x-request-id", record.request_id.encode())]
    await send_json(send, error.http_status, shape(error), headers)
