"""Paths to routes: whole matches, one parameter, the longest template first."""

from typing import Any

import pytest

from headrace.base.errors import MethodNotAllowed, NotFound
from headrace.gateway.route_table import Call, Route, RouteTable


async def handle(call: Call) -> None:
    raise AssertionError("nothing is served here")


table = RouteTable(
    Route(name, method, handle)
    for name, method in (
        ("/v1/files", "GET"),
        ("/v1/files", "POST"),
        ("/v1/files/{id}", "GET"),
        ("/v1/files/{id}", "DELETE"),
        ("/v1/files/{id}/content", "GET"),
        ("/v1/models/{model}", "GET"),
    )
)


def scope(method: str, path: str) -> dict[str, Any]:
    return {"method": method, "path": path}


@pytest.mark.parametrize(
    ("method", "path", "name", "parameter"),
    [
        ("POST", "/v1/files", "/v1/files", ""),
        ("HEAD", "/v1/files", "/v1/files", ""),
        ("DELETE", "/v1/files/a", "/v1/files/{id}", "a"),
        ("GET", "/v1/files/a/content", "/v1/files/{id}/content", "a"),
        ("GET", "/v1/models/org/name", "/v1/models/{model}", "org/name"),
    ],
)
def test_a_path_finds_its_route(method: str, path: str, name: str, parameter: str) -> None:
    route, found = table.match(scope(method, path))
    assert (route.name, found) == (name, parameter)


@pytest.mark.parametrize("path", ["/v1/files/", "/v1/file", "/", "//v1/files"])
def test_a_path_that_is_no_route_is_not_found(path: str) -> None:
    with pytest.raises(NotFound):
        table.match(scope("GET", path))


@pytest.mark.parametrize(("method", "path"), [("PUT", "/v1/files"), ("POST", "/v1/files/a")])
def test_a_wrong_method_is_told_the_right_ones(method: str, path: str) -> None:
    with pytest.raises(MethodNotAllowed, match="takes"):
        table.match(scope(method, path))
