"""Clients that leave, engines that load, drain and die."""

import os
import signal
from typing import Any

import pytest

from headrace.sim.served_app import (
    ServedApp,
    chat_body,
    chat_path,
    endless,
)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_blocks(run_server: Any, stream: bool) -> None:
    async with run_server() as server:
        body = chat_body(stream=stream, max_tokens=endless, temperature=1)
        exchange, task = server.start("POST", chat_path, body)
        while await server.metric("headrace_engine_running_requests") == 0:
            pass
        exchange.gone.set()
        await task
        while await server.metric("headrace_engine_running_requests") > 0:
            pass
        assert (await server.service.engine.stats()).kv_blocks_used == 0
        assert await server.metric("headrace_engine_client_disconnects_total") == 1
        text = (await server.get("/metrics")).body.decode()
        assert 'headrace_engine_finished_requests_total{finished_reason="abort"} 1.0' in text


async def test_the_usage_of_an_aborted_request_can_be_asked(run_server: Any) -> None:
    async with run_server(api_key="k") as server:
        headers = {"Authorization": "Bearer k", "X-Request-Id": "mine"}
        body = chat_body(stream=True, max_tokens=endless)
        exchange, task = server.start("POST", chat_path, body, headers)
        await exchange.answered.wait()
        exchange.gone.set()
        await task
        ended = (await server.get("/internal/usage/mine", headers)).json
        assert ended["finish_reason"] == "abort"
        assert ended["usage"]["prompt_tokens"] > 0
        assert ended["usage"]["completion_tokens"] > 0
        assert exchange.headers["x-request-id"] == "mine"
        assert (await server.get("/internal/usage/other", headers)).status == 404


async def test_while_loading_everything_says_so(run_server: Any) -> None:
    async with run_server(wait=False) as server:
        ready = await server.get("/readyz")
        assert ready.status == 503
        assert ready.json["state"] == "loading"
        assert "retry-after" in ready.headers
        assert (await server.get("/livez")).status == 200
        assert (await server.get("/health")).status == 503
        answer = await server.post(chat_path, chat_body())
        assert answer.status == 503
        assert "retry-after" in answer.headers
        metrics = (await server.get("/metrics")).body
        assert b"headrace_engine_restarts_total 0" in metrics
        assert b"headrace_engine_running_requests" not in metrics, "nobody knows, so it is not 0"


async def test_a_draining_server_finishes_and_takes_nothing_new(run_server: Any) -> None:
    async with run_server() as server:
        running, task = server.start("POST", chat_path, chat_body(stream=True, max_tokens=500))
        await running.answered.wait()
        server.app.drain()
        assert (await server.post(chat_path, chat_body())).status == 503
        assert (await server.get("/readyz")).json["state"] == "draining"
        await task
        assert running.events[-1] == "[DONE]"


def kill_engine(server: ServedApp) -> None:
    pid = server.service.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def test_an_engine_that_dies_ends_a_stream_with_an_error_event(run_server: Any) -> None:
    async with run_server() as server:
        exchange, task = server.start("POST", chat_path, chat_body(stream=True, max_tokens=endless))
        await exchange.answered.wait()
        kill_engine(server)
        await task
        assert exchange.events[-1]["error"]["code"] == "unavailable"
        assert exchange.sent[-1]["more_body"] is False
        await server.service.engine.wait_ready()
        assert (await server.post(chat_path, chat_body())).status == 200
        assert await server.metric("headrace_engine_restarts_total") == 1


async def test_an_engine_that_dies_fails_a_whole_answer_as_retryable(run_server: Any) -> None:
    async with run_server() as server:
        exchange, task = server.start("POST", chat_path, chat_body(max_tokens=endless))
        while await server.metric("headrace_engine_completion_tokens_total") == 0:
            pass
        kill_engine(server)
        await task
        assert exchange.status == 503
        assert "retry-after" in exchange.headers
