"""What still runs at the end of a drain is told so, in its API's words, and billed as it came."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.http.server import address_of, bind, serve
from headrace.ledger.reservation import Outcome, UsageSource
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name, price

chat_path = "/v1/chat/completions"


class Served:
    """A gateway whose drain has no patience."""

    def __init__(
        self, site: GatewaySite, client: aiohttp.ClientSession, address: tuple[str, int]
    ) -> None:
        self.site, self.client, self.address = site, client, address
        self.stop = asyncio.Event()

    async def ask(
        self, path: str = chat_path, key: str | None = None, **fields: Any
    ) -> tuple[int, Any, bytes]:
        body = {
            "model": model_name,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 9,
            **fields,
        }
        headers = {} if key is None else {"Idempotency-Key": key}
        async with self.client.post(path, json=body, headers=headers) as answer:
            return answer.status, answer.headers, await answer.read()


@asynccontextmanager
async def served(directory: Path, engine: FakeEngine) -> AsyncIterator[Served]:
    async with gateway_site(directory, [engine]) as site:
        sock = bind("127.0.0.1", 0)
        address = address_of(sock)
        url = "http://{}:{}".format(*address)
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(url, headers=headers) as client:
            found = Served(site, client, address)
            app = site.gateway.app
            serving = asyncio.create_task(
                serve(
                    app,
                    sock,
                    drain_timeout_s=0.0,
                    stop=found.stop,
                    on_drain=app.drain,
                    on_cut=app.cut,
                    handles_signals=False,
                )
            )
            yield found
            found.stop.set()
            await serving


def hanging_engine(tokens: int = 0) -> FakeEngine:
    """It answers so much and no more."""
    return FakeEngine(default=Behaviour(tokens=9, failure=Failure.HANG, fail_after=tokens))


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(
    ("path", "stream"), [(chat_path, False), (chat_path, True), ("/v1/messages", False)]
)
async def test_what_has_no_answer_yet_is_a_503_that_says_when_to_come_back(
    tmp_path: Path, path: str, stream: bool, key: str | None
) -> None:
    async with served(tmp_path, hanging_engine()) as gateway:
        asking = asyncio.create_task(gateway.ask(path, key, stream=stream))
        seen = await gateway.site.engines[0].wait_for(1)
        await seen.started.wait()
        gateway.stop.set()
        status, headers, body = await asking
        await seen.ended.wait()
        (bill,) = await gateway.site.bills(1)
    if stream and status == 200:  # its headers were out, with a comment
        assert error_of(body)["code"] == "unavailable"
    else:
        assert (status, headers["Retry-After"]) == (503, "1")
        error = json.loads(body)["error"]
        assert "try again" in error["message"]
        assert error.get("code", "unavailable") == "unavailable"
        assert (json.loads(body).get("type") == "error") is (path == "/v1/messages")
    assert (bill.outcome, bill.amount_nanousd, bill.is_borne) == (Outcome.FAILED, 0, True)
    assert bill.source is UsageSource.ENGINE


async def test_a_stream_in_its_middle_ends_with_an_error_event_and_costs_what_came(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, hanging_engine(tokens=3)) as gateway:
        body = {
            "model": model_name,
            "messages": [{"role": "user", "content": "Hello"}],
            "stream": True,
        }
        async with gateway.client.post(chat_path, json=body) as answer:
            received = b""
            while b" t2" not in received:
                received += await answer.content.readany()
            gateway.stop.set()
            received += await answer.content.read()
        (bill,) = await gateway.site.bills(1)
    assert error_of(received)["code"] == "unavailable"
    assert b"[DONE]" not in received
    assert (bill.outcome, bill.is_borne, bill.usage.completion_tokens) == (
        Outcome.FAILED, False, 3,
    )  # fmt: skip
    assert (
        bill.amount_nanousd
        == (
            bill.usage.prompt_tokens * price.input_nanousd_per_million
            + 3 * price.output_nanousd_per_million
        )
        // 1_000_000
    )


async def test_a_keyed_stream_ends_with_the_event_too_and_its_key_is_free_again(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, hanging_engine(tokens=3)) as gateway:
        asking = asyncio.create_task(gateway.ask(key="k", stream=True))
        joined = asyncio.create_task(gateway.ask(key="k", stream=True))
        seen = await gateway.site.engines[0].wait_for(1)
        await until(lambda: seen.completion_tokens == 3)
        gateway.stop.set()
        answers = await asyncio.gather(asking, joined)
        (bill,) = await gateway.site.bills(1)
        gateway.site.engines[0].default = Behaviour(tokens=2)
        headers = {"Authorization": f"Bearer {gateway.site.api_key}"}
        async with aiohttp.ClientSession(gateway.site.url, headers=headers) as other:
            again = Served(gateway.site, other, gateway.address)
            status, _, body = await again.ask(key="k", stream=True)
    for _, _, cut in answers:
        assert error_of(cut)["code"] == "unavailable"
    assert (bill.outcome, bill.is_borne) == (Outcome.FAILED, True)
    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")


async def test_what_waits_in_the_queue_is_told_so(tmp_path: Path) -> None:
    async with served(tmp_path, hanging_engine()) as gateway:
        gateway.site.limit_places(1)
        first = asyncio.create_task(gateway.ask())
        await gateway.site.engines[0].wait_for(1)
        second = asyncio.create_task(gateway.ask())
        await until(lambda: gateway.site.gateway.room.waiting_count() == 1)
        gateway.stop.set()
        statuses = [(await each)[0] for each in (first, second)]
        bills = await gateway.site.bills(2)
    assert statuses == [503, 503]
    assert len(gateway.site.engines[0].seen) == 1
    assert [bill.amount_nanousd for bill in bills] == [0, 0]


async def test_a_request_that_is_still_being_sent_gets_the_same_refusal(tmp_path: Path) -> None:
    async with served(tmp_path, FakeEngine()) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.address)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
            b"Expect: 100-continue\r\nAuthorization: Bearer %b\r\n\r\n"
            % gateway.site.api_key.encode()
        )
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # its body is waited for
        gateway.stop.set()
        said = await reader.read()
        writer.close()
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in head.lower()
    assert json.loads(body)["error"]["code"] == "unavailable"


async def until(holds: Callable[[], bool]) -> None:
    """Return once it does."""
    while True:
        await asyncio.sleep(0.005)
        if holds():
            return


def error_of(stream: bytes) -> dict[str, Any]:
    """The error in a stream's last event."""
    last = [block for block in stream.split(b"\n\n") if block.startswith(b"data: ")][-1]
    error: dict[str, Any] = json.loads(last.removeprefix(b"data: "))["error"]
    return error
