"""Who may ask for what."""

from typing import Any

from headrace.sim.served_app import (
    chat_body,
    chat_path,
)


async def test_everything_but_the_probes_asks_for_the_key(run_server: Any) -> None:
    async with run_server(api_key="right") as server:
        for path in ("/livez", "/readyz", "/health"):
            assert (await server.get(path)).status == 200
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic right"}):
            for path in ("/v1/models", "/v1/models/bytes", "/metrics", "/internal/usage/x"):
                assert (await server.get(path, header)).status == 401
            assert (await server.post(chat_path, chat_body(), header)).status == 401
        right = {"Authorization": "Bearer right"}
        assert (await server.post(chat_path, chat_body(), right)).status == 200


async def test_only_a_caller_with_the_key_chooses_request_ids(run_server: Any) -> None:
    async with run_server() as server:
        answer = await server.post(chat_path, chat_body(), {"X-Request-Id": "mine"})
        assert answer.headers["x-request-id"] != "mine"
    async with run_server(api_key="k") as server:
        headers = {"Authorization": "Bearer k", "X-Request-Id": "not an id"}
        assert (await server.post(chat_path, chat_body(), headers)).status == 400


async def test_the_operators_routes_are_closed_without_a_key(run_server: Any) -> None:
    async with run_server(wait=False) as server:
        refused = await server.post("/internal/abort/r", b"")
        assert (refused.status, refused.error["code"]) == (403, "permission_denied")
    async with run_server(api_key="secret", wait=False) as server:
        assert (await server.post("/internal/abort/r", b"")).status == 401
        own = {"X-Api-Key": "secret"}  # as Anthropic's clients send it
        assert (await server.post("/internal/abort/r", b"", own)).status == 200


async def test_priorities_are_for_those_with_the_key(run_server: Any) -> None:
    async with run_server(wait=False) as server:
        refused = await server.post(chat_path, chat_body(priority=1))
        assert (refused.status, refused.error["param"]) == (400, "priority")
    async with run_server(api_key="secret", wait=False) as server:
        taken = await server.post(
            chat_path, chat_body(priority=1), {"Authorization": "Bearer secret"}
        )
        assert taken.status == 503  # it is loading, and that is all that is wrong


async def test_a_route_of_ollamas_that_is_not_here_is_refused_in_its_own_shape(
    run_server: Any,
) -> None:
    async with run_server(wait=False) as server:
        for path in ("/api/pull", "/api/no-such"):
            refused = await server.post(path, b'{"model":"x"}')
            assert refused.status == 404
            assert isinstance(refused.json["error"], str)
