import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.base.clock import SystemClock
from headrace.engine_server import routes as routes_module
from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.service import ModelService, ServiceConfig
from headrace.http.asgi import Message
from headrace.protocol.sse import SseDecoder
from headrace.sim import engine_process

endless = 30_000  # tokens: more than any of these tests waits for
chat = "/v1/chat/completions"


@dataclass
class Exchange:
    """One request in flight and what was answered so far."""

    request: list[Message]
    sent: list[Message] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> Message:
        if self.request:
            return self.request.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.answered.set()

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The stream's events; the closing one as the string [DONE]."""
        events = SseDecoder().feed(self.body)
        return ["[DONE]" if event.data == b"[DONE]" else json.loads(event.data) for event in events]


class Server:
    def __init__(self, app: EngineServerApp, service: ModelService) -> None:
        self.app = app
        self.service = service

    def start(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[Exchange, "asyncio.Task[None]"]:
        exchange = Exchange([{"type": "http.request", "body": body, "more_body": False}])
        raw = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        scope = {"type": "http", "method": method, "path": path, "headers": raw}
        return exchange, asyncio.create_task(self.app(scope, exchange.receive, exchange.send))

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Exchange:
        exchange, task = self.start("GET", path, headers=headers)
        await task
        return exchange

    async def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> Exchange:
        exchange, task = self.start("POST", path, body, headers)
        await task
        return exchange

    async def metric(self, name: str) -> float:
        text = (await self.get("/metrics")).body.decode()
        (line,) = (line for line in text.splitlines() if line.startswith(name + " "))
        return float(line.split()[1])


@pytest.fixture
def run_server(byte_model: Path, engine_config: EngineConfig) -> Any:
    @asynccontextmanager
    async def run(
        behaviour: str = "serve", *, api_key: str | None = None, wait: bool = True
    ) -> AsyncIterator[Server]:
        config = ServiceConfig(byte_model, "bytes", engine_config)
        command = engine_process.command(behaviour)
        service = ModelService(config, SystemClock(), command=command)
        try:
            if wait:
                await service.start()
                await service.engine.wait_ready()
            yield Server(EngineServerApp(service, api_key), service)
        finally:
            await service.close()

    return run


def chat_body(**fields: Any) -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    defaults = {"model": "bytes", "messages": messages, "temperature": 0, "max_tokens": 40}
    return json.dumps({**defaults, **fields}).encode()


def text_body(**fields: Any) -> bytes:
    defaults = {"model": "bytes", "prompt": "hello", "temperature": 0, "max_tokens": 40}
    return json.dumps({**defaults, **fields}).encode()


def streamed_text(events: list[Any]) -> str:
    choices = [event["choices"][0] for event in events[:-1] if event["choices"]]
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content", "")
        for choice in choices
    )


async def test_streamed_text_and_usage_equal_the_unstreamed(run_server: Any) -> None:
    async with run_server() as server:
        for path, make in ((chat, chat_body), ("/v1/completions", text_body)):
            whole = (await server.post(path, make())).json
            options = {"include_usage": True}
            stream = await server.post(path, make(stream=True, stream_options=options))
            choice = whole["choices"][0]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert streamed_text(stream.events) == text
            assert stream.events[-1] == "[DONE]"
            usage = stream.events[-2]["usage"]
            assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] == 40
            assert usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]
            reasons = [event["choices"][0]["finish_reason"] for event in stream.events[:-2]]
            assert reasons == [None] * (len(reasons) - 1) + ["length"]


async def test_a_stream_has_one_write_a_step_and_ends_cleanly(run_server: Any) -> None:
    async with run_server() as server:
        answer = await server.post(chat, chat_body(stream=True))
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert [message["more_body"] for message in answer.sent[1:]][-1] is False
        assert len(answer.sent) <= 40 + 3
        assert answer.events[0]["choices"][0]["delta"]["role"] == "assistant"
        assert all("usage" not in event for event in answer.events[:-1])


async def test_a_stop_string_ends_both_kinds_of_answer_at_its_first_match(
    run_server: Any,
) -> None:
    async with run_server() as server:
        text = (await server.post("/v1/completions", text_body())).json["choices"][0]["text"]
        stop = text[12:15]
        before = text[: text.index(stop)]
        body = text_body(stop=["never", stop], max_tokens=endless)
        whole = (await server.post("/v1/completions", body)).json
        assert whole["choices"][0] == {
            "text": before,
            "finish_reason": "stop",
            "index": 0,
            "logprobs": None,
            "stop_reason": stop,
        }
        assert whole["usage"]["completion_tokens"] <= 40
        stream = await server.post(
            "/v1/completions", text_body(stop=stop, stream=True, max_tokens=endless)
        )
        assert streamed_text(stream.events) == before
        assert stream.events[-2]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", [None, "stop-string-of-the-answer"])
@pytest.mark.parametrize("path", [chat, "/v1/completions"])
async def test_log_probabilities_are_those_of_the_text_streamed_and_unstreamed(
    run_server: Any, path: str, stop: str | None
) -> None:
    is_chat = path == chat
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2} if is_chat else {"logprobs": 2}
    body = chat_body if is_chat else text_body
    async with run_server() as server:
        whole = (await server.post(path, body(**fields))).json["choices"][0]
        if stop is not None:
            text = whole["message"]["content"] if is_chat else whole["text"]
            fields["stop"] = text[10:13]
            whole = (await server.post(path, body(**fields))).json["choices"][0]
            assert whole["finish_reason"] == "stop"
        events = (await server.post(path, body(**fields, stream=True))).events
    parts = [
        event["choices"][0]["logprobs"]
        for event in events[:-1]
        if event["choices"][0]["logprobs"] is not None
    ]
    if is_chat:
        listed = whole["logprobs"]["content"]
        assert [token for part in parts for token in part["content"]] == listed
        sent = bytes(byte for token in listed for byte in token["bytes"])
        assert sent.decode(errors="replace").startswith(whole["message"]["content"])
        assert all(len(token["top_logprobs"]) == 2 for token in listed)
        assert all(token["top_logprobs"][0]["bytes"] == token["bytes"] for token in listed)
    else:
        listed = whole["logprobs"]
        for column in ("text_offset", "token_logprobs", "tokens", "top_logprobs"):
            assert [value for part in parts for value in part[column]] == listed[column]
        assert listed["text_offset"][0] == 0
        assert listed["text_offset"][-1] < len(whole["text"])
    assert whole["logprobs"] is not None


async def test_usage_can_stand_in_every_chunk(run_server: Any) -> None:
    async with run_server() as server:
        options = {"continuous_usage_stats": True}
        answer = await server.post(chat, chat_body(stream=True, stream_options=options))
        counts = [event["usage"]["completion_tokens"] for event in answer.events[:-1]]
        assert counts == sorted(counts)
        assert counts[-1] == 40


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_blocks(run_server: Any, stream: bool) -> None:
    async with run_server() as server:
        body = chat_body(stream=stream, max_tokens=endless, temperature=1)
        exchange, task = server.start("POST", chat, body)
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
        exchange, task = server.start("POST", chat, body, headers)
        await exchange.answered.wait()
        exchange.gone.set()
        await task
        ended = (await server.get("/internal/usage/mine", headers)).json
        assert ended["finish_reason"] == "abort"
        assert ended["usage"]["prompt_tokens"] > 0
        assert ended["usage"]["completion_tokens"] > 0
        assert exchange.headers["x-request-id"] == "mine"
        assert (await server.get("/internal/usage/other", headers)).status == 404


async def test_usage_answers_and_metrics_agree(run_server: Any) -> None:
    async with run_server() as server:
        answers = [(await server.post(chat, chat_body(seed=seed))).json for seed in range(3)]
        for name in ("prompt", "completion"):
            total = sum(answer["usage"][f"{name}_tokens"] for answer in answers)
            assert await server.metric(f"headrace_engine_{name}_tokens_total") == total
        cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
        assert await server.metric("headrace_engine_cached_tokens_total") == sum(cached)


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        (chat, chat_body(model="other"), 404, "model", "not_found"),
        (chat, chat_body(messages=[]), 400, "messages", "invalid_request"),
        (chat, chat_body(colour="red"), 400, "colour", "invalid_request"),
        (chat, b"\xff", 400, None, "invalid_request"),
        (chat, chat_body(max_tokens=40_000), 400, "messages", "context_length_exceeded"),
        ("/v1/completions", text_body(prompt=""), 400, "prompt", "invalid_request"),
        ("/v1/completions", text_body(prompt=[99_999]), 400, "prompt", "invalid_request"),
        ("/v1/nothing", b"", 404, None, "not_found"),
        ("/v1/models", b"", 405, None, "method_not_allowed"),
    ],
)
async def test_what_cannot_succeed_is_refused_in_openai_shape(
    run_server: Any, path: str, body: bytes, status: int, param: str | None, code: str
) -> None:
    async with run_server() as server:
        answer = await server.post(path, body)
        assert answer.status == status
        assert answer.error["param"] == param
        assert answer.error["code"] == code


async def test_a_prompt_over_the_context_is_refused_with_the_numbers(run_server: Any) -> None:
    async with run_server() as server:
        answer = await server.post("/v1/completions", text_body(prompt="x" * 40_000))
        error = answer.error
        assert error["code"] == "context_length_exceeded"
        assert (error["prompt_tokens"], error["max_tokens"]) == (40_000, 40)
        assert error["max_model_len"] == 32_768


async def test_a_body_over_the_limit_is_refused(
    run_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "body_bytes_max", 10)
    async with run_server() as server:
        assert (await server.post(chat, chat_body())).status == 413


async def test_everything_but_the_probes_asks_for_the_key(run_server: Any) -> None:
    async with run_server(api_key="right") as server:
        for path in ("/livez", "/readyz", "/health"):
            assert (await server.get(path)).status == 200
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic right"}):
            for path in ("/v1/models", "/v1/models/bytes", "/metrics", "/internal/usage/x"):
                assert (await server.get(path, header)).status == 401
            assert (await server.post(chat, chat_body(), header)).status == 401
        right = {"Authorization": "Bearer right"}
        assert (await server.post(chat, chat_body(), right)).status == 200


async def test_only_a_caller_with_the_key_chooses_request_ids(run_server: Any) -> None:
    async with run_server() as server:
        answer = await server.post(chat, chat_body(), {"X-Request-Id": "mine"})
        assert answer.headers["x-request-id"] != "mine"
    async with run_server(api_key="k") as server:
        headers = {"Authorization": "Bearer k", "X-Request-Id": "not an id"}
        assert (await server.post(chat, chat_body(), headers)).status == 400


async def test_the_model_is_listed_with_its_context(run_server: Any) -> None:
    async with run_server() as server:
        (card,) = (await server.get("/v1/models")).json["data"]
        assert (card["id"], card["object"]) == ("bytes", "model")
        assert card["max_model_len"] == 32_768
        assert (await server.get("/v1/models/bytes")).json == card
        assert (await server.get("/v1/models/other")).status == 404


async def test_while_loading_everything_says_so(run_server: Any) -> None:
    async with run_server(wait=False) as server:
        ready = await server.get("/readyz")
        assert ready.status == 503
        assert ready.json["state"] == "loading"
        assert "retry-after" in ready.headers
        assert (await server.get("/livez")).status == 200
        assert (await server.get("/health")).status == 503
        answer = await server.post(chat, chat_body())
        assert answer.status == 503
        assert "retry-after" in answer.headers
        metrics = (await server.get("/metrics")).body
        assert b"headrace_engine_restarts_total 0" in metrics
        assert b"headrace_engine_running_requests" not in metrics, "nobody knows, so it is not 0"


async def test_a_draining_server_finishes_and_takes_nothing_new(run_server: Any) -> None:
    async with run_server() as server:
        running, task = server.start("POST", chat, chat_body(stream=True, max_tokens=500))
        await running.answered.wait()
        server.app.drain()
        assert (await server.post(chat, chat_body())).status == 503
        assert (await server.get("/readyz")).json["state"] == "draining"
        await task
        assert running.events[-1] == "[DONE]"


def kill_engine(server: Server) -> None:
    pid = server.service.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def test_an_engine_that_dies_ends_a_stream_with_an_error_event(run_server: Any) -> None:
    async with run_server() as server:
        exchange, task = server.start("POST", chat, chat_body(stream=True, max_tokens=endless))
        await exchange.answered.wait()
        kill_engine(server)
        await task
        assert exchange.events[-1]["error"]["code"] == "unavailable"
        assert exchange.sent[-1]["more_body"] is False
        await server.service.engine.wait_ready()
        assert (await server.post(chat, chat_body())).status == 200
        assert await server.metric("headrace_engine_restarts_total") == 1


async def test_an_engine_that_dies_fails_a_whole_answer_as_retryable(run_server: Any) -> None:
    async with run_server() as server:
        exchange, task = server.start("POST", chat, chat_body(max_tokens=endless))
        while await server.metric("headrace_engine_completion_tokens_total") == 0:
            pass
        kill_engine(server)
        await task
        assert exchange.status == 503
        assert "retry-after" in exchange.headers


async def test_an_unexpected_failure_is_a_500_without_details(
    run_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_server() as server:
        monkeypatch.setattr(server.service, "open", None)
        answer = await server.post(chat, chat_body())
        assert answer.status == 500
        assert "NoneType" not in answer.error["message"]


async def test_the_operators_routes_are_closed_without_a_key(run_server: Any) -> None:
    async with run_server(wait=False) as server:
        refused = await server.post("/internal/pause", b"")
        assert (refused.status, refused.error["code"]) == (403, "permission_denied")
    async with run_server(api_key="secret", wait=False) as server:
        assert (await server.post("/internal/pause", b"")).status == 401
        own = {"X-Api-Key": "secret"}  # as Anthropic's clients send it
        assert (await server.post("/internal/pause", b"", own)).json["paused"] is True
        refused = await server.post(chat, chat_body(), own)
        assert (refused.status, refused.error["code"]) == (503, "unavailable")
        assert (await server.post("/internal/resume", b"", own)).json["paused"] is False
        assert (await server.post("/internal/drain", b"", own)).json["draining"] is True
        assert (await server.get("/readyz")).json["state"] == "draining"


async def test_priorities_are_for_those_with_the_key(run_server: Any) -> None:
    async with run_server(wait=False) as server:
        refused = await server.post(chat, chat_body(priority=1))
        assert (refused.status, refused.error["param"]) == (400, "priority")
    async with run_server(api_key="secret", wait=False) as server:
        taken = await server.post(chat, chat_body(priority=1), {"Authorization": "Bearer secret"})
        assert taken.status == 503  # it is loading, and that is all that is wrong


async def test_a_request_of_several_prompts_is_one_in_the_books(run_server: Any) -> None:
    async with run_server() as server:
        body = text_body(prompt=["one", "two"], n=2, max_tokens=3)
        answer = (await server.post("/v1/completions", body)).json
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["prompt_tokens"] == 6
        assert answer["usage"]["completion_tokens"] <= 12
        assert await server.metric("headrace_engine_prompt_tokens_total") == 6
