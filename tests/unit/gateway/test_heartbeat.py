"""A quiet stream is kept open by comments, and by nothing once it speaks."""

import asyncio

from headrace.gateway.heartbeat import Heartbeat
from headrace.http.asgi import EventStream, Message
from headrace.protocol.sse import SseDecoder


async def test_headers_and_comments_come_before_the_first_event_and_stop_with_it() -> None:
    sent: asyncio.Queue[Message] = asyncio.Queue()
    out = EventStream(sent.put)
    beat = Heartbeat(out, interval_s=0.0)
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
