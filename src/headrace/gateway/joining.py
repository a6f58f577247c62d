"""A request whose `Idempotency-Key` another gateway runs: it waits for the end and its answer.

    runs elsewhere   wait, with comments in a stream, until its gateway says how it ended
    ended well       the kept answer, as it was; if it is not kept, 409 with what it was charged as
    came to nothing  run it here
    gateway died     its claim runs out; one of those that wait runs it

A wait ends with its client, or at the deadline of the request. The store is looked at less and less
often, and by all that wait together.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.base.errors import ClientClosed, Conflict, HeadraceError, Unavailable
from headrace.gateway.access_log import AccessRecord
from headrace.gateway.endings import CallerDeadline
from headrace.gateway.heartbeat import Heartbeat
from headrace.gateway.kept_answer import packed, unpacked
from headrace.gateway.recording import Make, Recording, is_moment
from headrace.gateway.replay_claims import KeyClaims
from headrace.http.asgi import (
    DisconnectScope,
    EventStream,
    Header,
    Message,
    Receive,
    Send,
    stream_headers,
)
from headrace.protocol.errors import error_event
from headrace.storage.replay_claims import Claim

joining_max = 250  # of a gateway; each costs a row of a look
joining_s_max = 1800.0  # as long as an engine may take for a whole answer
first_look_s = 0.05
look_interval_s_max = 1.0

joined_header: Header = (b"x-headrace-replayed", b"joined")
replayed_header: Header = (b"x-headrace-replayed", b"finished")


@dataclass(frozen=True, slots=True)
class Keyed:
    """One request with a key that its caller chose."""

    digest: str
    fingerprint: bytes
    record: AccessRecord
    streams: bool  # events, that is
    translated: Callable[[Send], Send]  # puts an error event into the caller's API
    left: Callable[[], CallerDeadline | float | None]  # seconds, or that its time is over
    standing: Callable[[], Iterable[Header]]  # headers of the moment

    @property
    def request_id(self) -> str:
        """Its own, which another's answer does not have."""
        return self.record.request_id


class Joining:
    """Runs what is free and waits for what is not; for one gateway."""

    def __init__(self, claims: KeyClaims, headers_grace_s: float) -> None:
        """`headers_grace_s` is how long a stream waits for an answer before its headers go out."""
        self._claims = claims
        self._headers_grace_s = headers_grace_s
        self._waiting = 0

    async def answer(
        self, keyed: Keyed, recording: Recording, make: Make, receive: Receive, send: Send
    ) -> bool:
        """Answer into the recording; whether the answer is complete."""
        standing = await self._take(keyed)
        if standing is None:
            return await self._run(keyed, recording, make, receive, send)
        if standing.is_done:
            await self._replay(keyed, standing, replayed_header, send)
            return True
        late = LateStart(send, keyed)
        try:
            standing = await self._wait(keyed, standing, recording, late, receive)
            if standing is None:
                return await self._run(keyed, recording, make, receive, late.send)
            await self._replay(keyed, standing, joined_header, late.send)
        except HeadraceError as error:
            if not late.has_started or isinstance(error, ClientClosed):
                raise
            keyed.record.error = error.code
            await EventStream(keyed.translated(late.send)).close(error_event(error))
            return False
        return True

    async def _take(self, keyed: Keyed) -> Claim | None:
        return await self._claims.take(keyed.digest, keyed.fingerprint, keyed.request_id)

    async def _run(
        self, keyed: Keyed, recording: Recording, make: Make, receive: Receive, send: Send
    ) -> bool:
        """The request itself, whose claim is ours."""
        is_kept = False
        try:
            is_kept = await make(receive, send)
        finally:
            if is_kept:
                answer = await asyncio.to_thread(packed, recording.messages)
                await self._claims.finish(keyed.digest, answer)
            else:
                await self._claims.release(keyed.digest)
        return is_kept

    async def _replay(self, keyed: Keyed, standing: Claim, how: Header, send: Send) -> None:
        """Send the answer that a claim's request got; Conflict if it is not there."""
        data = await self._claims.answer(standing)
        if data is None:
            raise answer_gone(standing)
        start, *bodies = await asyncio.to_thread(unpacked, data)
        headers = [each for each in start["headers"] if not is_moment(each)]
        await send({**start, "headers": [*headers, how, *keyed.standing()]})
        for body in bodies:
            await send(body)

    async def _wait(
        self,
        keyed: Keyed,
        standing: Claim,
        recording: Recording,
        late: "LateStart",
        receive: Receive,
    ) -> Claim | None:
        """Wait for the end of what runs elsewhere; None: the key is claimed here now."""
        if self._waiting >= joining_max:
            raise Unavailable(
                f"{joining_max} requests wait for others of the same Idempotency-Key already; try "
                "again.",
                retry_after_s=1.0,
            )
        left_s = keyed.left()
        if isinstance(left_s, CallerDeadline):
            raise left_s
        limit_s = joining_s_max if left_s is None else min(left_s, joining_s_max)
        self._waiting += 1
        recording.is_idle = True
        late.begin(self._headers_grace_s)
        try:
            async with DisconnectScope(receive), asyncio.timeout(limit_s):
                return await self._end_of(keyed, standing)
        except TimeoutError:
            over = keyed.left()
            raise over if isinstance(over, CallerDeadline) else runs_elsewhere(standing) from None
        finally:
            late.end()
            recording.is_idle = False
            self._waiting -= 1

    async def _end_of(self, keyed: Keyed, standing: Claim) -> Claim | None:
        delay_s = first_look_s
        found: Claim | None = standing
        while found is not None and not found.is_done:
            await asyncio.sleep(delay_s)
            found = await self._claims.look(found, delay_s)
            delay_s = min(2 * delay_s, look_interval_s_max)
            if found is None or (found.left_s <= 0 and not found.is_done):
                found = await self._take(keyed)
        return found


class LateStart:
    """A stream whose client is told to wait before anybody knows what its answer is.

    The headers of the answer then come too late, and go as comments."""

    def __init__(self, send: Send, keyed: Keyed) -> None:
        self._send = send
        self._out = EventStream(send, [(b"x-request-id", keyed.request_id.encode())])
        self._beat = Heartbeat(self._out) if keyed.streams else None

    @property
    def has_started(self) -> bool:
        """Whether the client has its headers."""
        return self._out.started

    def begin(self, grace_s: float) -> None:
        """Send comments after so long, in a stream."""
        if self._beat is not None:
            self._beat.start(grace_s)

    def end(self) -> None:
        """Send none any more."""
        if self._beat is not None:
            self._beat.stop()

    async def send(self, message: Message) -> None:
        """Pass the answer on, as far as it is not there yet."""
        if not self._out.started:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._out.add_headers(each for each in message["headers"] if each not in stream_headers)
        elif message.get("more_body", False):
            await self._out.write(message["body"])
        else:
            await self._out.close(message.get("body", b""))


def answer_gone(standing: Claim) -> Conflict:
    """The refusal of a key whose answer is kept nowhere."""
    return Conflict(
        f"The request with this Idempotency-Key was answered and charged as {standing.request_id}; "
        "the answer is not kept any more, and it is not run again. Use a new key to run it anew.",
        param="Idempotency-Key",
        request_id=standing.request_id,
    )


def runs_elsewhere(standing: Claim) -> Conflict:
    """The refusal of a key that another gateway runs for too long."""
    return Conflict(
        "The request with this Idempotency-Key still runs at another gateway; ask again, or use a "
        "new key.",
        param="Idempotency-Key",
        request_id=standing.request_id,
    )
