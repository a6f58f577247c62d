"""One answer that is kept while it is made, so that several connections can be given it.

The answer is made by a task of its own, not by the connection that asked first: a client that
lost its connection comes back with the same key and finds the answer still being made. When
nobody has listened for `unattended_s_max` it is given up, as if its client had left.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.base.errors import HeadraceError, UpstreamFailed
from headrace.gateway.endings import AnswerTooLarge
from headrace.http.asgi import DisconnectScope, Header, Message, Receive, Send, ServerCloses

unattended_s_max = 30.0  # longer than clients wait before they try again
recorded_bytes_max = 16 * 1024 * 1024  # of one answer
last_words_bytes_max = 64 * 1024  # in which a stream over it says why it ends
message_overhead_bytes = 400  # of a small chunk: the dict, its keys and values
moment_headers = (b"x-ratelimit-", b"x-headrace-replayed")

log = logging.getLogger(__name__)
Make = Callable[[Receive, Send], Awaitable[bool]]  # whether the answer is worth keeping


class Recording:
    """What was sent so far, for those that join and those that come later."""

    def __init__(self, fingerprint: bytes) -> None:
        self.fingerprint = fingerprint
        self.size_bytes = 0
        self.error: HeadraceError | None = None
        self.is_over = False  # nothing more is added
        self.is_kept = False  # it is complete, and may be given again
        self.is_idle = False  # nothing is lost if it ends with its last listener
        self._messages: list[Message] = []
        self._listeners = 0
        self._is_too_large = False
        self._changed = asyncio.Event()
        self._abandoned = asyncio.Event()
        self._is_cut = False
        self._timer: asyncio.TimerHandle | None = None

    async def make(self, make: Make) -> None:
        """Run the request to its end and keep its answer; never raises.

        A fault is logged here: those that listened may be gone, or be several."""
        try:
            self.is_kept = await make(self._receive, self._record)
        except HeadraceError as error:
            self.error = error
        except Exception:
            log.exception("a request with an Idempotency-Key failed")
            self.error = HeadraceError("The gateway failed on this request; its log says why.")
        finally:
            self.is_over = True
            self._tell()
            if self.error is None and not self._messages:
                self.error = ServerCloses()

    @property
    def is_complete(self) -> bool:
        """Whether all of it was sent, for better or worse."""
        return self.is_over or (
            bool(self._messages)
            and self._messages[-1]["type"] == "http.response.body"
            and not self._messages[-1].get("more_body", False)
        )

    @property
    def messages(self) -> list[Message]:
        """What was sent so far."""
        return self._messages

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self._abandoned.set()

    def cut(self) -> None:
        """This gateway ends, whoever waits."""
        self._is_cut = True
        self._abandoned.set()

    async def play(self, receive: Receive, send: Send, extra: tuple[Header, ...] = ()) -> None:
        """Give one connection the whole answer, from its beginning and as it comes.

        Raises what making it raised before its first byte, ClientClosed if this client left."""
        self._listeners += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            async with DisconnectScope(receive, of_cuts=False):  # the recording says that itself
                last = await self._play_all_but_last(send, extra)
            await send(last)
        finally:
            self._listeners -= 1
            if not self._listeners and not self.is_over:
                loop = asyncio.get_running_loop()
                patience_s = 0.0 if self.is_idle else unattended_s_max
                self._timer = loop.call_later(patience_s, self.abandon)

    async def _play_all_but_last(self, send: Send, extra: tuple[Header, ...]) -> Message:
        """The last message is returned: it must be sent outside of the disconnect scope."""
        index = 0
        while True:
            while index == len(self._messages):
                if self.is_over:
                    raise self.error or UpstreamFailed("The answer ended early.")
                await self._changed.wait()
            message = self._messages[index]
            index += 1
            if message["type"] == "http.response.start":
                headers = [each for each in message["headers"] if not (extra and is_moment(each))]
                message = {**message, "headers": [*headers, *extra]}
            elif not message.get("more_body", False):
                return message
            await send(message)

    async def _receive(self) -> Message:
        await self._abandoned.wait()
        return {"type": "http.disconnect", "is_cut": self._is_cut}

    async def _record(self, message: Message) -> None:
        coming_bytes = declared_bytes(message) if message["type"] == "http.response.start" else 0
        self.size_bytes += len(message.get("body", b"")) + message_overhead_bytes
        limit_bytes = recorded_bytes_max + (last_words_bytes_max if self._is_too_large else 0)
        if self.size_bytes + coming_bytes > limit_bytes:
            self._is_too_large = True
            raise AnswerTooLarge(
                f"The answer is over {recorded_bytes_max} bytes, too large to be kept for its "
                "Idempotency-Key; send the request without one."
            )
        self._messages.append(message)
        self._tell()

    def _tell(self) -> None:
        """Wake those that wait for more."""
        self._changed.set()
        self._changed = asyncio.Event()


def is_moment(header: Header) -> bool:
    """Whether a header tells of the moment when it was written, and of no other."""
    return header[0].startswith(moment_headers)


def declared_bytes(start: Message) -> int:
    """The length that an answer's headers announce; 0 if they do not."""
    return next((int(value) for name, value in start["headers"] if name == b"content-length"), 0)
