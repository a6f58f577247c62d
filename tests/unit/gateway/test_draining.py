"""What outlives a caller: its client's side is shut, and what goes on is told apart."""

import asyncio
from collections.abc import Iterable

import pytest

from headrace.gateway.draining import Outlet, outliving
from headrace.http.asgi import Header


class Client:
    """Takes what is written once `reads` is set."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.headers: list[Header] = []
        self.reads = asyncio.Event()

    def add_headers(self, headers: Iterable[Header]) -> None:
        self.headers += headers

    async def write(self, data: bytes) -> None:
        await self.reads.wait()
        self.got.append(data)


async def test_a_write_to_a_client_that_reads_no_more_ends_when_the_outlet_is_shut() -> None:
    client = Client()
    outlet = Outlet(client)
    writing = asyncio.create_task(outlet.write(b"one"))
    await asyncio.sleep(0)
    outlet.shut()
    await writing
    client.reads.set()
    await outlet.write(b"two")
    outlet.add_headers([(b"a", b"b")])
    assert (client.got, client.headers) == ([], [])


async def test_an_open_outlet_is_the_client() -> None:
    client = Client()
    client.reads.set()
    outlet = Outlet(client)
    outlet.add_headers([(b"a", b"b")])
    await outlet.write(b"one")
    assert (client.got, client.headers) == ([b"one"], [(b"a", b"b")])


@pytest.mark.parametrize("is_kept", [True, False])
async def test_what_is_not_kept_is_cancelled_before_its_caller_goes_on(is_kept: bool) -> None:
    gate, ended = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        try:
            await gate.wait()
            return "done"
        finally:
            ended.set()

    kept: list[asyncio.Task[str]] = []

    def keep(task: asyncio.Task[str]) -> bool:
        kept.append(task)
        return is_kept

    asking = asyncio.create_task(outliving(work(), keep))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.cancelled()
    assert ended.is_set() is not is_kept
    gate.set()
    (result,) = await asyncio.gather(*kept, return_exceptions=True)
    assert (result == "done") is is_kept
