"""`headrace bench serve` against a small fake of an OpenAI-compatible server."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from headrace.base.errors import ConfigurationError
from headrace.cli.bench_serve import plan_levels

Run = Callable[..., int]


class FakeServer:
    """Answers like an engine: two tokens a chunk, a role chunk first, usage at the end.

    Its tokenizer makes two tokens of a word, and its template ten more."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.authorizations: set[str] = set()
        self.in_flight = 0
        self.in_flight_most = 0
        self.status = 200
        self.reports_usage = True
        self.fails_inside = False
        self.ends_early = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["path"] == "/v1/models":
            await answer(send, 200, [b'{"object":"list","data":[{"id":"fake"},{"id":"other"}]}'])
            return
        headers = dict(scope["headers"])
        self.authorizations.add(headers.get(b"authorization", b"").decode())
        asked = json.loads(body)
        self.bodies.append(asked)
        self.in_flight += 1
        self.in_flight_most = max(self.in_flight_most, self.in_flight)
        if self.status == 200:
            await answer(send, 200, list(self.chunks(asked)))
        else:
            await answer(send, self.status, [b'{"error":{"message":"no credit left"}}'])
        self.in_flight -= 1

    def chunks(self, asked: dict[str, Any]) -> Iterator[bytes]:
        text = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
        yield event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for _ in range(asked["max_tokens"] // 2):
            yield event({"choices": [{"delta": {"content": "two tokens"}}]})
        if self.ends_early:
            return
        if self.fails_inside:
            yield event({"error": {"message": "the engine died"}})
            return
        if self.reports_usage:
            usage = {
                "prompt_tokens": 10 + 2 * len(text.split()),
                "completion_tokens": asked["max_tokens"],
                "prompt_tokens_details": {"cached_tokens": 7},
            }
            yield event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


def event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


async def answer(send: Send, status: int, parts: list[bytes]) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer()


@pytest.fixture
def url(fake: FakeServer) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(fake, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def bench(run: Run, url: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run the command with --json and return what it wrote."""

    def run_bench(*arguments: str) -> dict[str, Any]:
        run("bench", "serve", url, "--json", *arguments)
        parsed = json.loads(capsys.readouterr().out)
        assert isinstance(parsed, dict)
        return parsed

    return run_bench


def test_tokens_come_from_usage_and_not_from_chunks(
    bench: Callable[..., dict[str, Any]],
) -> None:
    result = bench("--concurrency", "1,3", "--output-tokens", "8", "--requests", "6")
    assert result["model"] == "fake"
    assert [level["concurrency"] for level in result["levels"]] == [1, 3]
    for level in result["levels"]:
        assert (level["completed"], level["failed"]) == (6, 0)
        assert level["completion_tokens"] == 48
        assert level["cached_tokens"] == 42
        assert level["prompt_tokens"] == 6 * (10 + 2 * 128)
        rate = level["completion_tokens"] / level["duration_s"]
        assert level["output_tokens_per_s"] == pytest.approx(rate)
        for name in ("ttft_ms", "itl_ms", "latency_ms"):
            times = level[name]
            assert 0 <= times["p50"] <= times["p90"] <= times["p99"] <= times["max"]


def test_concurrency_is_kept(fake: FakeServer, bench: Callable[..., dict[str, Any]]) -> None:
    bench("--concurrency", "4", "--requests", "40", "--warmup", "0")
    assert len(fake.bodies) == 40
    assert fake.in_flight_most <= 4


def test_a_prompt_length_in_tokens_is_met(
    fake: FakeServer, bench: Callable[..., dict[str, Any]]
) -> None:
    arguments = ("--prompt-tokens", "210", "--shared-prefix", "100", "--concurrency", "1")
    level = bench(*arguments)["levels"][0]
    assert level["prompt_tokens"] == level["completed"] * 210
    prompts = [body["messages"][0]["content"].split() for body in fake.bodies[-4:]]
    assert len({tuple(prompt[:50]) for prompt in prompts}) == 1
    assert len({tuple(prompt[50:]) for prompt in prompts}) == 4


def test_the_same_seed_asks_the_same_and_another_does_not(
    fake: FakeServer, bench: Callable[..., dict[str, Any]]
) -> None:
    arguments = ("--concurrency", "1", "--requests", "3", "--warmup", "0")
    for seed in ("1", "1", "2"):
        bench(*arguments, "--seed", seed)
    first, second, third = fake.bodies[:3], fake.bodies[3:6], fake.bodies[6:]
    assert first == second
    assert first != third
    assert len({body["messages"][0]["content"] for body in first}) == 3


def test_options_reach_the_server(
    fake: FakeServer, bench: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", "hr_secret")
    result = bench("--concurrency", "1", "--ignore-eos", "--completions", "--model", "mine")
    assert result["endpoint"] == "/v1/completions"
    assert fake.authorizations == {"Bearer hr_secret"}
    assert fake.bodies[0]["ignore_eos"] is True
    assert fake.bodies[0]["model"] == "mine"
    assert fake.bodies[0]["stream_options"] == {"include_usage": True}
    assert "hr_secret" not in json.dumps(result)


def test_a_rate_sends_all_requests(bench: Callable[..., dict[str, Any]]) -> None:
    level = bench("--rate", "2000", "--requests", "50", "--concurrency", "8")["levels"][0]
    assert level["completed"] == 50
    assert level["request_rate_per_s"] == 2000


def test_a_duration_ends_the_level(bench: Callable[..., dict[str, Any]]) -> None:
    level = bench("--duration", "0.2", "--concurrency", "2")["levels"][0]
    assert level["completed"] >= 2
    assert level["completed"] == level["requests"]


def test_refusals_are_counted_by_their_message(
    fake: FakeServer, run: Run, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.status = 402
    assert run("bench", "serve", url, "--concurrency", "2", "--json") == 1
    written = capsys.readouterr()
    level = json.loads(written.out)["levels"][0]
    assert level["errors"] == {"HTTP 402: no credit left": 8}
    assert level["ttft_ms"] is None
    assert written.err == "headrace: no request succeeded: HTTP 402: no credit left\n"


def test_an_error_inside_the_stream_is_a_failure(
    fake: FakeServer, bench: Callable[..., dict[str, Any]]
) -> None:
    fake.fails_inside = True
    level = bench("--concurrency", "1")["levels"][0]
    assert level["errors"] == {"the engine died": 4}


def test_a_stream_without_its_end_is_a_failure(
    fake: FakeServer, bench: Callable[..., dict[str, Any]]
) -> None:
    fake.ends_early = True
    level = bench("--concurrency", "1")["levels"][0]
    assert level["errors"] == {"the stream ended early": 4}
    assert level["completion_tokens"] == 0


def test_answers_without_usage_are_said_and_not_guessed(
    fake: FakeServer, run: Run, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.reports_usage = False
    assert run("bench", "serve", url, "--concurrency", "1") == 0
    written = capsys.readouterr()
    assert "4 answers came without usage" in written.err
    assert "CLIENTS" in written.out


def test_no_server_is_one_clear_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "serve", "http://127.0.0.1:1") == 1
    assert "is the server running there?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--concurrency", "0"),
        ("--concurrency", "a,b"),
        ("--rate", "0"),
        ("--requests", "0"),
        ("--duration", "-1"),
        ("--prompt-words", "-1"),
        ("--prompt-tokens", "0"),
        ("--prompt-words", "8", "--prompt-tokens", "8"),
        ("--shared-prefix", "500"),
        ("--output-tokens", "0"),
        ("--warmup", "-1"),
        ("--request-timeout", "0"),
    ],
)
def test_a_wrong_option_is_named(
    run: Run, url: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run("bench", "serve", url, *arguments) == 1
    assert arguments[0] in capsys.readouterr().err


def test_levels_default_to_four_requests_a_slot() -> None:
    levels = plan_levels("1,8", None, None, None)
    assert [level.request_count for level in levels] == [4, 32]
    with pytest.raises(ConfigurationError, match="32 levels"):
        plan_levels(",".join(["1"] * 33), None, None, None)
