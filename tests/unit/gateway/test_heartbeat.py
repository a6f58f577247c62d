"""A quiet stream is kept open by comments, and by nothing once it speaks."""

import asyncio

import pytest

from headrace.gateway import heartbeat
from headrace.gateway.heartbeat import Heartbeat
from headrace.http.asgi import EventStream, Message
from headrace.protocol.sse import SseDecoder


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "interval_s", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_headers_and_comments_come_before_the_first_event_and_stop_with_it() -> None:
    sent: asyncio.Queue[Message] = asyncio.Queue()
    out = EventStream(sent.put)
    beat = Heartbeat(out)
    beat.start(grace_s=0.0)
    start, first, second = [await sent.get() for _ in range(3)]
    beat.stop()
    assert start["type"] == "http.response.start"
    assert first["body"] == second["body"]
    assert SseDecoder().feed(first["body"]) == []  # clients see no event
    while not sent.empty():
        sent.get_nowait()
    await out.write(b"data: x\n\n")
    assert (await sent.get())["body"] == b"data: x\n\n"
    assert sent.empty()


async def test_a_stream_that_speaks_at_once_has_no_comment() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    beat = Heartbeat(EventStream(send))
    beat.start(grace_s=60.0)
    beat.stop()
    beat.stop()
    await asyncio.sleep(0)
    assert sent == []


async def test_the_first_comment_is_hastened_once_and_not_at_all_after_an_event() -> None:
    sent: asyncio.Queue[Message] = asyncio.Queue()
    out = EventStream(sent.put)
    beat = Heartbeat(out)
    beat.start(grace_s=3_600.0)
    beat.hasten()
    beat.hasten()
    assert [(await sent.get())["type"] for _ in range(2)] == [
        "http.response.start",
        "http.response.body",
    ]
    beat.hasten()
    await asyncio.sleep(0)
    assert sent.empty()
    beat.stop()

    spoke = EventStream(sent.put)
    beat = Heartbeat(spoke)
    beat.start(grace_s=3_600.0)
    beat.hasten()
    beat.stop()  # the engine's first token came with its head
    beat.hasten()
    await asyncio.sleep(0)
    assert sent.empty()
