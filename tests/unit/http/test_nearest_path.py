"""A wrong path is answered with the one that was meant."""

import pytest

from headrace.http.nearest_path import NearestPath

nearest = NearestPath(
    ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/files/{id}", "/livez")
)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/Models", "/v1/models"),
        ("//v1/models", "/v1/models"),
        ("/v1/chat/compeltions", "/v1/chat/completions"),
        ("/live", "/livez"),
    ],
)
def test_what_was_meant_is_named(asked: str, meant: str) -> None:
    assert nearest.hint(asked) == f" Did you mean {meant}?"


@pytest.mark.parametrize(
    "asked", ["/", "", "/v1", "/v1/", "/robots.txt", "/v1/weather", "/a" * 40_000, "/" + "x" * 70]
)
def test_nothing_is_made_up(asked: str) -> None:
    assert nearest.hint(asked) == ""
