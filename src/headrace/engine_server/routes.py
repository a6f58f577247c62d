"""Which handler answers a method and path, and how its errors are written.

Authentication is a property of the matched route, and the default is to ask.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from headrace.base.errors import HeadraceError, MethodNotAllowed, NotFound
from headrace.http.asgi import Receive, Scope, Send, read_body
from headrace.http.nearest_path import NearestPath
from headrace.protocol.errors import error_body

# Far above the longest context as text; a gateway takes 10 MB and adds its own fields.
body_bytes_max = 10 * 1024 * 1024 + 64 * 1024

_variable = re.compile(r"\{(?P<name>[a-z_]+)(?P<rest>\.\.\.)?\}")


class Access(Enum):
    """Who may ask a route."""

    KEY = "key"  # whoever has the key, or anyone if none is set
    OPERATOR = "operator"  # whoever has the key, and nobody if none is set
    PUBLIC = "public"


@dataclass(slots=True)
class Call:
    """One request on its way to its handler."""

    scope: Scope
    receive: Receive
    send: Send
    values: Mapping[str, str]  # of the path's variables

    async def body(self) -> bytes:
        """The request's body; PayloadTooLarge over the bound."""
        return await read_body(self.receive, body_bytes_max)


Handler = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path; `{name}` is one segment of the path, `{name...}` all that is left."""

    method: str
    path: str
    handler: Handler
    access: Access = Access.KEY
    error_body: Callable[[HeadraceError], bytes] = error_body
    summary: str = ""
    request: type[msgspec.Struct] | None = None  # what its body is parsed to, for the reference

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the path's variables."""
        return tuple(match["name"] for match in _variable.finditer(self.path))


class RouteTable:
    """All routes, found by path and then by method."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._nearest = NearestPath(route.path for route in routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Route]]] = {}
        for route in routes:
            if "{" in route.path:
                pattern = re.compile(_pattern_of(route.path))
                _, methods = self._patterns.setdefault(route.path, (pattern, {}))
                methods[route.method] = route
            else:
                self._exact.setdefault(route.path, {})[route.method] = route

    def match(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """The route and its path's values; NotFound or MethodNotAllowed if there is none."""
        methods, values = self._find(path)
        if methods is None:
            hint = self._nearest.hint(path)
            raise NotFound(f"There is no {path!r} here; the API starts at /v1.{hint}")
        route = methods.get(method)
        if route is None and method == "HEAD":
            route = methods.get("GET")
        if route is None:
            raise MethodNotAllowed(method, path, methods)
        return route, values

    def _find(self, path: str) -> tuple[dict[str, Route] | None, Mapping[str, str]]:
        methods = self._exact.get(path)
        if methods is not None:
            return methods, {}
        for pattern, candidates in self._patterns.values():
            match = pattern.fullmatch(path)
            if match is not None:
                return candidates, match.groupdict()
        return None, {}


def _pattern_of(path: str) -> str:
    pieces: list[str] = []
    end = 0
    for match in _variable.finditer(path):
        segment = ".+" if match["rest"] else "[^/]+"
        pieces += [re.escape(path[end : match.start()]), f"(?P<{match['name']}>{segment})"]
        end = match.end()
    return "".join([*pieces, re.escape(path[end:])])
