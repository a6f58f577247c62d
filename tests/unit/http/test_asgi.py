import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.base.errors import (
    AuthenticationFailed,
    ClientClosed,
    InvalidRequest,
    MethodNotAllowed,
    PayloadTooLarge,
    Unavailable,
)
from headrace.http import asgi

Message = dict[str, Any]


def receiver(*messages: Message) -> Callable[[], Awaitable[asgi.Message]]:
    """Gives the messages one by one, then waits for ever, as a quiet client does."""
    left = list(messages)

    async def receive() -> asgi.Message:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return receive


class Sent(list[asgi.Message]):
    async def send(self, message: asgi.Message) -> None:
        self.append(message)


def piece(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


gone = {"type": "http.disconnect"}


async def test_a_body_arrives_in_pieces() -> None:
    receive = receiver(piece(b"ab", more=True), piece(b"", more=True), piece(b"c"))
    assert await asgi.read_body(receive, 3) == b"abc"


async def test_a_body_over_the_limit_is_read_to_its_end_and_refused() -> None:
    rest = [piece(b"ab", more=True), piece(b"cd", more=True), piece(b"e"), piece(b"next")]
    receive = receiver(*rest)
    with pytest.raises(PayloadTooLarge) as caught:
        await asgi.read_body(receive, 3)
    assert caught.value.fields["limit_bytes"] == 3
    assert (await receive())["body"] == b"next"


async def test_a_client_that_leaves_while_sending_is_noticed() -> None:
    with pytest.raises(ClientClosed):
        await asgi.read_body(receiver(piece(b"ab", more=True), gone), 3)


async def test_a_body_that_does_not_arrive_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi, "body_timeout_s", 0)
    with pytest.raises(InvalidRequest, match="did not arrive"):
        await asgi.read_body(receiver(piece(b"ab", more=True)), 3)


def test_error_headers_say_when_to_come_back_and_how_to_authenticate() -> None:
    assert asgi.error_headers(Unavailable("later", retry_after_s=0.2)) == [(b"retry-after", b"1")]
    assert (b"www-authenticate", b"Bearer") in asgi.error_headers(AuthenticationFailed("no"))
    wrong = MethodNotAllowed("PUT", "/v1/x", ["POST", "GET"])
    assert asgi.error_headers(wrong) == [(b"allow", b"GET, POST")]


async def test_an_event_stream_starts_with_its_first_write_and_flushes_each() -> None:
    sent = Sent()
    stream = asgi.EventStream(sent.send)
    assert not stream.started
    await stream.write(b"data: 1\n\n")
    await stream.close(b"data: 2\n\n")
    assert [message["type"] for message in sent] == [
        "http.response.start",
        "http.response.body",
        "http.response.body",
        "http.response.body",
    ]
    assert [message["body"] for message in sent[1:]] == [b"data: 1\n\n", b"data: 2\n\n", b""]
    assert [message["more_body"] for message in sent[1:]] == [True, True, False]


async def test_a_block_ends_as_client_closed_when_the_client_leaves() -> None:
    cleaned = asyncio.Event()

    async def handler() -> None:
        async with asgi.DisconnectScope(receiver(piece(b""), gone)):
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.set()

    with pytest.raises(ClientClosed):
        await handler()
    assert cleaned.is_set()
    await asyncio.sleep(0)  # the task itself is not cancelled any more


async def test_a_block_with_a_patient_client_is_left_alone() -> None:
    async with asgi.DisconnectScope(receiver()):
        await asyncio.sleep(0)


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    entered = asyncio.Event()

    async def handler() -> None:
        async with asgi.DisconnectScope(receiver()):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(handler())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_inside_a_block_passes() -> None:
    with pytest.raises(ValueError, match="inner"):
        async with asgi.DisconnectScope(receiver()):
            raise ValueError("inner")
