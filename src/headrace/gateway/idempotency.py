"""`Idempotency-Key`: a request that comes again joins the one that runs, or gets its answer again.

    first                     runs, detached from its connection
    again while it runs       joins: the same answer, also a stream from its beginning
    again within the window   the kept answer; nothing runs, nothing is charged
    again with another body   422
    again, elsewhere          the same, by what the store has (`joining`)

Only complete answers are kept: one that failed is tried anew. Keys belong to the API key that
sent them. A gateway keeps answers in memory, for itself, and claims keys in the store, for all.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace.base.clock import Clock
from headrace.base.errors import InvalidRequest, Unavailable
from headrace.gateway import replay_claims
from headrace.gateway.joining import Joining, Keyed, joined_header, replayed_header
from headrace.gateway.recording import Make, Recording
from headrace.gateway.replay_claims import KeyClaims
from headrace.http.asgi import Header, Receive, Send

header_name = b"idempotency-key"
key_length_max = 255
kept_answers_max = 10_000
kept_bytes_max = 128 * 1024 * 1024  # of finished answers; the oldest go first
running_max = 1_000  # each may hold `recorded_bytes_max`


class ReplayKey(NamedTuple):
    """Whose key, and which."""

    api_key_id: str
    idempotency_key: str


class Kept(NamedTuple):
    """A finished answer and until when it is kept."""

    recording: Recording
    expire_s: float


class Replays:
    """The running and the kept answers of one gateway."""

    def __init__(self, clock: Clock, claims: KeyClaims, headers_grace_s: float) -> None:
        """`headers_grace_s` as in `forwarding.Timeouts`."""
        self._clock = clock
        self._claims = claims
        self._joining = Joining(claims, headers_grace_s)
        self._running: dict[ReplayKey, Recording] = {}
        self._kept: OrderedDict[ReplayKey, Kept] = OrderedDict()  # the oldest first
        self._kept_bytes = 0
        self._tasks: dict[ReplayKey, asyncio.Task[None]] = {}

    async def answer(
        self,
        key: ReplayKey,
        fingerprint: bytes,
        make: Make,
        receive: Receive,
        send: Send,
        *,
        standing: Callable[[], Iterable[Header]] = tuple,
        keyed: Keyed | None = None,
    ) -> None:
        """Give the connection the answer of this key; `make` is run only if there is none.

        `standing` are the headers of the moment that go with an answer that was made before;
        `keyed` is the request where a caller chose the key; None: the project caches answers.

        KeyReused if the key was used for another request."""
        check_key(key.idempotency_key)
        await self._ended(key)
        self._forget_expired()
        kept = self._kept.get(key)
        recording = kept.recording if kept else self._running.get(key)
        if recording is None:
            await self._start(key, fingerprint, make, keyed).play(receive, send)
            return
        if recording.fingerprint != fingerprint:
            raise replay_claims.key_reused()
        how = replayed_header if kept else joined_header
        await recording.play(receive, send, (how, *standing()))

    def cut(self) -> None:
        """This gateway ends: what runs answers so to those that listen."""
        for recording in self._running.values():
            recording.cut()

    async def close(self) -> None:
        """Cut what runs, and wait until it is settled."""
        self.cut()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._claims.close()

    async def recover(self) -> None:
        """Free the keys of what a crash broke off; call it once, before serving."""
        await self._claims.recover()

    async def _ended(self, key: ReplayKey) -> None:
        """Wait until what becomes of a request of this key is known, if its answer is complete."""
        recording = self._running.get(key)
        if recording is not None and recording.is_complete:
            await asyncio.wait([self._tasks[key]])

    def _start(
        self, key: ReplayKey, fingerprint: bytes, make: Make, keyed: Keyed | None
    ) -> Recording:
        if len(self._running) >= running_max:
            raise Unavailable(
                f"{running_max} requests with an Idempotency-Key run already; try again.",
                retry_after_s=1.0,
            )
        recording = self._running[key] = Recording(fingerprint)
        if keyed is None:
            run = self._run(key, recording, make)
        else:
            run = self._run_claimed(key, recording, make, keyed)
        self._tasks[key] = asyncio.create_task(run)
        return recording

    async def _run(self, key: ReplayKey, recording: Recording, make: Make) -> None:
        try:
            await recording.make(make)
        finally:
            del self._running[key], self._tasks[key]
            if recording.is_kept:
                self._keep(key, recording)

    async def _run_claimed(
        self, key: ReplayKey, recording: Recording, make: Make, keyed: Keyed
    ) -> None:
        """The same for a key that no other gateway runs or has answered."""

        async def claim_and_make(receive: Receive, send: Send) -> bool:
            return await self._joining.answer(keyed, recording, make, receive, send)

        await self._run(key, recording, claim_and_make)

    def _keep(self, key: ReplayKey, recording: Recording) -> None:
        self._kept[key] = Kept(recording, self._clock.monotonic_s() + replay_claims.replay_window_s)
        self._kept_bytes += recording.size_bytes
        while self._kept_bytes > kept_bytes_max or len(self._kept) > kept_answers_max:
            self._forget_oldest()

    def _forget_expired(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._kept and next(iter(self._kept.values())).expire_s <= now_s:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, kept = self._kept.popitem(last=False)
        self._kept_bytes -= kept.recording.size_bytes


def fingerprint_of(path: str, body: bytes) -> bytes:
    """What two requests must share to be the same."""
    return hashlib.blake2b(path.encode() + b"\0" + body, digest_size=32).digest()


def check_key(idempotency_key: str) -> None:
    """InvalidRequest if the header is no usable key."""
    usable = idempotency_key.isascii() and idempotency_key.isprintable()
    if not usable or not 1 <= len(idempotency_key) <= key_length_max:
        raise InvalidRequest(
            f"An Idempotency-Key is 1 to {key_length_max} printable ASCII characters.",
            param="Idempotency-Key",
        )
