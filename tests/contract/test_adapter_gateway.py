"""Every engine's exchanges through a whole gateway: what clients get, and what is settled."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from headrace.adapters.facts import Abort, StreamUsage
from headrace.adapters.registry import find_adapter
from headrace.gateway.upstream import chat_path
from headrace.http.asgi import EventStream, Receive, Scope, Send, read_body
from headrace.ledger.reservation import Outcome, UsageSource
from headrace.protocol.sse import SseDecoder
from headrace.sim.engine_exchanges import exchanges
from headrace.sim.engine_wire import (
    EngineExchanges,
    call_name,
    call_pieces,
    pieces,
    stream_usage,
)
from headrace.sim.gateway_site import (
    GatewaySite,
    fill_store,
    gateway_site,
    model_name,
    serving,
)
from headrace.spec.models import ChatFormat, ModelVersion
from headrace.storage import open_sqlite

engines = pytest.mark.parametrize("engine", exchanges, ids=lambda engine: engine.engine)
body_bytes_max = 1 << 20
# Where a stream of the model `fake` is asked for, of engines with another API than OpenAI's.
stream_paths = {
    "anthropic": "/messages",
    "triton_vllm": "/v2/models/fake/generate_stream",
    "triton_tensorrt_llm": "/v2/models/fake/generate_stream",
}


class ReplayedEngine:
    """Answers as an engine did, to whatever it is asked."""

    def __init__(self, engine: EngineExchanges, stream: bytes) -> None:
        self._engine = engine
        self._stream = stream
        self.error: tuple[int, bytes] | None = None
        self.breaks = False  # its connection, after the stream
        self.rest: bytes | None = None  # of the stream, once `gate` is open; None: all at once
        self.gate = asyncio.Event()
        self.left = asyncio.Event()  # its connection was closed before
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.header_names: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await self._answer(send, 200, b"application/json", self._engine.models)
            return
        self.paths.append(scope["path"])
        self.header_names |= {name.decode() for name, _ in scope["headers"]}
        self.bodies.append(json.loads(await read_body(receive, body_bytes_max)))
        if self.error is not None:
            status, body = self.error
            await self._answer(send, status, b"application/json", body)
        elif self.breaks:
            await EventStream(send).write(self._stream)
            raise ConnectionAbortedError
        elif self.rest is None:
            await self._answer(send, 200, b"text/event-stream", self._stream)
        else:
            await self._answer_in_two(receive, send, self.rest)

    async def _answer_in_two(self, receive: Receive, send: Send, rest: bytes) -> None:
        out = EventStream(send)
        await out.write(self._stream)
        gate = asyncio.create_task(self.gate.wait())
        leaving = asyncio.create_task(disconnected(receive))
        await asyncio.wait((gate, leaving), return_when=asyncio.FIRST_COMPLETED)
        gate.cancel()
        if leaving.done():
            self.left.set()
            return
        leaving.cancel()
        await out.close(rest)

    @staticmethod
    async def _answer(send: Send, status: int, kind: bytes, body: bytes) -> None:
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def before_last_piece(engine: EngineExchanges) -> int:
    """Where the event of the last piece of text begins."""
    last = engine.stream.index(json.dumps(pieces[-1]).encode())
    return engine.stream.rindex(b"\n\n", 0, last) + 2


@asynccontextmanager
async def running(
    engine: EngineExchanges, directory: Path, stream: bytes | None = None
) -> AsyncIterator[tuple[ReplayedEngine, GatewaySite, aiohttp.ClientSession]]:
    replayed = ReplayedEngine(engine, engine.stream if stream is None else stream)
    async with (
        serving(replayed) as url,
        gateway_site(directory, [], addresses=[url], engine=engine.engine) as site,
        aiohttp.ClientSession(
            site.url, headers={"Authorization": f"Bearer {site.api_key}"}
        ) as client,
    ):
        yield replayed, site, client


async def chat(client: aiohttp.ClientSession, **fields: Any) -> tuple[int, bytes]:
    body = {"model": model_name, "messages": [{"role": "user", "content": "Hi"}], **fields}
    async with client.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.read()


@engines
async def test_a_stream_reaches_the_client_whole_and_is_settled_exactly(
    engine: EngineExchanges, tmp_path: Path
) -> None:
    async with running(engine, tmp_path) as (replayed, site, client):
        status, body = await chat(client, stream=True, stream_options={"include_usage": True})
        (settlement,) = await site.settlements(1)
    assert status == 200
    *data, last = [event.data for event in SseDecoder().feed(body)]
    assert last == b"[DONE]"
    chunks = [json.loads(item) for item in data]
    text = "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )
    assert text == "".join(pieces)
    assert settlement.outcome is Outcome.FINISHED
    if engine.usage is None:
        assert settlement.source is UsageSource.COUNTED
        assert settlement.usage.completion_tokens == len(pieces)
    else:
        assert chunks[-1]["usage"]["completion_tokens"] == len(pieces)
        assert settlement.source is UsageSource.ENGINE
        assert settlement.usage == engine.usage
    (path,) = replayed.paths
    assert path == stream_paths.get(engine.engine, find_adapter(engine.engine).url("", chat_path))
    assert replayed.bodies[0].get("model", "fake") == "fake"


@engines
async def test_a_stream_that_breaks_off_is_told_and_settled_by_what_passed(
    engine: EngineExchanges, tmp_path: Path
) -> None:
    begun = engine.stream[: before_last_piece(engine)]
    dialect = find_adapter(engine.engine).dialect
    async with running(engine, tmp_path, begun) as (replayed, site, client):
        replayed.breaks = dialect is not None and dialect.ends_with_body
        _, body = await chat(client, stream=True)
        (settlement,) = await site.settlements(1)

    assert b'"error"' in body
    assert settlement.outcome is Outcome.FAILED
    if find_adapter(engine.engine).facts.stream_usage is StreamUsage.EVERY_CHUNK:
        assert settlement.usage.completion_tokens == len(pieces) - 1
    else:
        assert 0 < settlement.usage.completion_tokens <= len(pieces)


@engines
async def test_what_does_not_fit_is_the_callers_error_and_costs_nothing(
    engine: EngineExchanges, tmp_path: Path
) -> None:
    exchange = engine.errors[0]
    async with running(engine, tmp_path) as (replayed, site, client):
        replayed.error = (exchange.status, exchange.body)
        status, body = await chat(client)
        (settlement,) = await site.settlements(1)
    error = json.loads(body)["error"]
    assert status == 400
    assert error["code"] == exchange.expected.code
    assert {name: error[name] for name in exchange.fields} == exchange.fields
    assert settlement.usage.completion_tokens == 0


@engines
async def test_a_tenants_salt_leaves_the_house_for_no_one_who_does_not_use_it(
    engine: EngineExchanges, tmp_path: Path
) -> None:
    async with running(engine, tmp_path) as (replayed, _, client):
        await chat(client, stream=True)
    in_body = engine.engine in ("vllm", "sglang", "tensorrt_llm", "kserve")

    assert ("cache_salt" in replayed.bodies[0]) is in_body
    assert ("x-headrace-cache-salt" in replayed.header_names) is (engine.engine == "headrace")


async def leave_after(client: aiohttp.ClientSession, told: Sequence[str]) -> None:
    """Ask for a stream, and close the connection once it told this."""
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": model_name, "messages": messages, "stream": True}
    async with client.post("/v1/chat/completions", json=body) as answer:
        decoder, text = SseDecoder(), ""
        while text != "".join(told):
            for event in decoder.feed(await answer.content.readany()):
                for choice in json.loads(event.data)["choices"]:
                    text += choice["delta"].get("content") or ""
        answer.close()


async def ended_for_its_caller(site: GatewaySite, client: aiohttp.ClientSession) -> None:
    """Return once the gateway knows that nobody waits for the answer any more."""
    while b'"outcome":"aborted"' not in site.access_log.getvalue():
        await client.get("/livez")
        site.gateway.access_log.flush()


@engines
async def test_who_leaves_ends_the_request_and_pays_for_what_the_engine_told(
    engine: EngineExchanges, tmp_path: Path
) -> None:
    facts = find_adapter(engine.engine).facts
    start = before_last_piece(engine)
    async with running(engine, tmp_path, engine.stream[:start]) as (replayed, site, client):
        replayed.rest = engine.stream[start:]
        await leave_after(client, pieces[:-1])
        if facts.abort is Abort.NONE:
            await ended_for_its_caller(site, client)
            replayed.gate.set()
        else:
            await replayed.left.wait()
        (settlement,) = await site.settlements(1)

    assert settlement.outcome is Outcome.ABORTED
    if facts.abort is Abort.NONE:
        assert not replayed.left.is_set()
        assert settlement.usage == engine.usage
    elif facts.stream_usage is StreamUsage.EVERY_CHUNK:
        assert settlement.usage == engine.cut_usage
    else:
        assert settlement.source is UsageSource.COUNTED
        assert settlement.usage.completion_tokens >= 2


toolless = ("triton_vllm", "triton_tensorrt_llm")
calling_engines = pytest.mark.parametrize(
    "engine",
    [engine for engine in exchanges if engine.engine not in toolless],
    ids=lambda engine: engine.engine,
)
toolless_engines = pytest.mark.parametrize(
    "engine",
    [engine for engine in exchanges if engine.engine in toolless],
    ids=lambda engine: engine.engine,
)


@toolless_engines
async def test_what_its_api_has_no_word_for_is_refused_by_name_and_never_sent(
    engine: EngineExchanges, tmp_path: Path
) -> None:
    function = {"name": call_name, "parameters": {"type": "object"}}
    asked: dict[str, Any] = {
        "tools": [{"type": "function", "function": function}],
        "logprobs": True,
        "n": 2,
        "response_format": {"type": "json_object"},
    }
    async with running(engine, tmp_path) as (replayed, _, client):
        answers = {name: await chat(client, **{name: value}) for name, value in asked.items()}
    for name, (status, body) in answers.items():
        assert status == 400
        assert json.loads(body)["error"]["param"] == name
    assert replayed.bodies == []


@toolless_engines
async def test_turns_are_written_by_the_template_that_the_version_was_given(
    engine: EngineExchanges, tmp_path: Path
) -> None:
    template = (
        "{{ bos_token }}{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}"
        "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    database_path = tmp_path / "headrace.db"
    replayed = ReplayedEngine(engine, engine.stream)
    async with serving(replayed) as url:
        with closing(open_sqlite(database_path)) as database:
            fill_store(database, [(url, "")], None, engine.engine)
            (version,) = database.store.list(ModelVersion)
            database.store.update(replace(version, chat_format=ChatFormat(template, "</s>")))
        async with (
            gateway_site(
                tmp_path, [], addresses=[url], open_store=lambda: open_sqlite(database_path)
            ) as site,
            aiohttp.ClientSession(
                site.url, headers={"Authorization": f"Bearer {site.api_key}"}
            ) as client,
        ):
            messages = [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            ]
            status, _ = await chat(client, stream=True, messages=messages, stop="END")
    assert status == 200
    (body,) = replayed.bodies
    assert body["text_input"] == "<|system|>Be brief.</s><|user|>Hi</s><|assistant|>"
    sampling = json.loads(body.get("sampling_parameters", "{}"))
    assert sampling.get("stop", body.get("stop_words")) == ["END"]


@calling_engines
async def test_a_call_reaches_the_client_whole(engine: EngineExchanges, tmp_path: Path) -> None:
    function = {"name": call_name, "parameters": {"type": "object"}}
    async with running(engine, tmp_path, engine.call_stream) as (replayed, site, client):
        tools = [{"type": "function", "function": function}]
        status, body = await chat(client, stream=True, tools=tools)
        (settlement,) = await site.settlements(1)
    assert status == 200
    *data, last = [event.data for event in SseDecoder().feed(body)]
    assert last == b"[DONE]"
    choices = [choice for item in data for choice in json.loads(item)["choices"]]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert {call["index"] for call in calls} == {0}
    assert calls[0]["id"] == "call_1"
    assert [call["function"]["name"] for call in calls if "name" in call["function"]] == [call_name]
    assert "".join(call["function"]["arguments"] for call in calls) == "".join(call_pieces)
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert settlement.outcome is Outcome.FINISHED
    assert settlement.usage == stream_usage
    (told,) = replayed.bodies[0]["tools"]
    assert told.get("function", told)["name"] == call_name


@engines
async def test_stop_strings_reach_the_engine(engine: EngineExchanges, tmp_path: Path) -> None:
    async with running(engine, tmp_path) as (replayed, _, client):
        await chat(client, stream=True, stop=["END", "\n\n"])
    (body,) = replayed.bodies
    match engine.engine:
        case "anthropic":
            told = body["stop_sequences"]
        case "triton_vllm":
            told = json.loads(body["sampling_parameters"])["stop"]
        case "triton_tensorrt_llm":
            told = body["stop_words"]
        case _:
            told = body["stop"]
    assert told[:2] == ["END", "\n\n"]
    assert told[2:] == (["\nUser:"] if engine.engine.startswith("triton_") else [])
