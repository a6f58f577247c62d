"""One engine process as its parent sees it: started, spoken to, ended.

The socket pair has no name in the file system, so no other process can join the conversation, and
nothing is left behind when either side is killed.
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from headrace.engine_server import messages
from headrace.engine_server.messages import FromEngine, ToEngine

engine_command = (sys.executable, "-m", "headrace.engine_server.engine_process")
exit_grace_s = 5.0  # from the closed socket to the end of the process, before it is killed


class EngineChild(asyncio.Protocol):
    """The engine process and the socket to it."""

    def __init__(self, on_message: Callable[[FromEngine], None]) -> None:
        self._on_message = on_message
        self._decode = msgspec.msgpack.Decoder(FromEngine).decode
        self._buffer = messages.FrameBuffer()
        self._closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    async def start(
        cls, command: Sequence[str], on_message: Callable[[FromEngine], None]
    ) -> "EngineChild":
        """Start the process; its messages go to `on_message` in their order."""
        child = cls(on_message)
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        with theirs:
            await loop.create_unix_connection(lambda: child, sock=ours)
            try:
                child._process = await asyncio.create_subprocess_exec(
                    *command,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                )
            except BaseException:
                child.close()
                raise
        return child

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Queue a message; what a dead engine never reads is dropped."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(messages.encode_frame(message))

    async def wait_closed(self) -> int:
        """Wait until the conversation is over and the process has ended; its exit status."""
        assert self._process is not None
        await self._closed.wait()
        try:
            return await asyncio.wait_for(self._process.wait(), exit_grace_s)
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()

    def kill(self) -> None:
        """End a process that does not hear any more."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()

    def close(self) -> None:
        """Hang up, which ends the process."""
        assert self._transport is not None
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio calls this)."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        """Hand on whole messages (asyncio calls this)."""
        for body in self._buffer.feed(data):
            self._on_message(self._decode(body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end (asyncio calls this)."""
        self._closed.set()
