"""`Idempotency-Key`s beyond the memory of one gateway: claimed in the store before anything runs.

    claimed      the request runs here, and its claim is renewed; ended well it stays claimed for
                 the window, with its answer, else it is freed
    not free     another gateway runs it, or has answered it: see `joining`
    not renewed  its gateway died, or has lost the store: after `lease_s` whoever asks runs it
    store away   the keys hold within this gateway's life alone

The store's clock says when a lease is over, so those of gateways may differ. Whatever runs twice
for all that is charged once: `storage.charged_keys`.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, KeyReused
from headrace.base.loops import LoopKeeper
from headrace.gateway.together import Together
from headrace.ledger.journal import Journal
from headrace.storage.charged_keys import key_window_s
from headrace.storage.replay_claims import (
    Change,
    Claim,
    Finish,
    Release,
    Renew,
    ReplayClaims,
    Take,
)

replay_window_s = key_window_s  # of a request that ended well
write_timeout_s = 5.0  # a store that takes longer counts as away
answer_bytes_together_max = 64 * 1024  # a larger one is written apart from what others wait for
lease_s = 15.0  # of a claim whose gateway does not renew it
renew_interval_s = 5.0
renewals_loop = "idempotency_claims"


class KeyClaims:
    """The claims of one gateway; one event loop uses it. At most `idempotency.running_max` run."""

    def __init__(
        self, store: ReplayClaims, journal: Journal, clock: Clock, loops: LoopKeeper
    ) -> None:
        """`loops` keeps what renews the claims of requests that run."""
        loops.know(renewals_loop)
        self._loops = loops
        self._store = store
        self._journal = journal
        self._clock = clock
        self._writes = Together[Change, Claim | None](self._write_all)
        self._looks = Together[str, Claim | None](store.standing)
        self._keeping = asyncio.Lock()  # one large answer at a time
        self._open: dict[str, str] = {}  # request ids of what runs here, by digest
        self._renewing: asyncio.Task[None] | None = None
        self._renewed_s = 0.0

    async def take(self, digest: str, fingerprint: bytes, request_id: str) -> Claim | None:
        """Claim a key for a request, which nothing runs here; None: done, or the store is away.

        Otherwise the claim that stands in the way. KeyReused if that is of another request."""
        standing = await self._claim(digest, fingerprint, request_id)
        if standing is not None and self._is_left_open(standing):
            await self._write(Release(digest, standing.request_id))
            standing = await self._claim(digest, fingerprint, request_id)
        if standing is None or standing.request_id == request_id:
            self._hold(digest, request_id)
            return None
        check_same(standing, fingerprint)
        return standing

    async def look(self, standing: Claim, after_s: float) -> Claim | None:
        """What became of a claim that was read so long ago. KeyReused as in `take`.

        While the store is away it is the same, and runs out."""
        begun_s = self._clock.monotonic_s()
        try:
            found = await self._looks.ask(standing.digest, write_timeout_s)
        except (HeadraceError, TimeoutError):
            passed_s = after_s + self._clock.monotonic_s() - begun_s
            return msgspec.structs.replace(standing, left_s=standing.left_s - passed_s)
        if found is not None:
            check_same(found, bytes.fromhex(standing.fingerprint))
        return found

    async def answer(self, standing: Claim) -> bytes | None:
        """What the request of a claim was answered; None: it is not kept, or out of reach."""
        with suppress(HeadraceError):
            return await asyncio.to_thread(self._store.answer, standing.request_id)
        return None

    async def finish(self, digest: str, answer: bytes | None) -> None:
        """The request ended well; its claim is renewed until that is written."""
        if answer is not None and len(answer) > answer_bytes_together_max:
            async with self._keeping:
                with suppress(HeadraceError):
                    await asyncio.to_thread(
                        self._store.keep, self._open[digest], answer, replay_window_s
                    )
            answer = None
        await self._write(Finish(digest, self._open.pop(digest), replay_window_s, answer))

    async def release(self, digest: str) -> None:
        """The request came to nothing: the same key may run it again."""
        await self._write(Release(digest, self._open.pop(digest)))

    async def recover(self) -> None:
        """Free what a crash left claimed; call it once before serving."""
        with suppress(HeadraceError):
            await asyncio.to_thread(self._recover)

    async def close(self) -> None:
        """Renew nothing any more."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._writes.close()
        await self._looks.close()

    async def _claim(self, digest: str, fingerprint: bytes, request_id: str) -> Claim | None:
        gateway_id = self._journal.journal_id
        return await self._write(Take(digest, fingerprint.hex(), request_id, gateway_id, lease_s))

    async def _write(self, change: Change) -> Claim | None:
        """The claim that stands in the way; None if there is none, or the store is away."""
        try:
            return await self._writes.ask(change, write_timeout_s)
        except (HeadraceError, TimeoutError):
            return None

    def _write_all(self, changes: Sequence[Change]) -> list[Claim | None]:
        return self._store.write(changes)

    def _is_left_open(self, standing: Claim) -> bool:
        """Whether it is ours, of a request that ended here while the store was away."""
        is_ours = standing.gateway_id == self._journal.journal_id and not standing.is_done
        return is_ours and standing.digest not in self._open

    def _hold(self, digest: str, request_id: str) -> None:
        self._open[digest] = request_id
        if self._renewing is None or self._renewing.done():
            self._renewed_s = self._clock.monotonic_s()
            self._renewing = self._loops.start(renewals_loop, self._renew)

    async def _renew(self) -> None:
        """Renew what runs until nothing does; after a fault at once, as leases go on running."""
        while self._open:
            due_s = self._renewed_s + renew_interval_s
            await asyncio.sleep(max(0.0, due_s - self._clock.monotonic_s()))
            renewals = [Renew(*claimed, lease_s) for claimed in self._open.items()]
            await asyncio.gather(*(self._write(each) for each in renewals))
            self._renewed_s = self._clock.monotonic_s()

    def _recover(self) -> None:
        left: Sequence[Change] = [
            Release(claim.digest, claim.request_id)
            for claim in self._store.unfinished(self._journal.journal_id)
        ]
        if left:
            self._store.write(left)


def digest_of(api_key_id: str, idempotency_key: str) -> str:
    """What a key is claimed under."""
    text = f"{api_key_id}\0{idempotency_key}".encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def charge_digest_of(digest: str, fingerprint: bytes) -> str:
    """What a key is charged under: it and what was asked, for the time when claims are not made."""
    return hashlib.blake2b(digest.encode() + fingerprint, digest_size=16).hexdigest()


def check_same(standing: Claim, fingerprint: bytes) -> None:
    """KeyReused if a key was used for something else."""
    if standing.fingerprint != fingerprint.hex():
        raise key_reused(request_id=standing.request_id)


def key_reused(**charged_as: str) -> KeyReused:
    """The refusal of a key that was used for another request, whose `request_id` it may name.

    422 and no 409, as draft-ietf-httpapi-idempotency-key-header says (2.7): the official clients
    send what met a 409 again, which is right for a request that still runs and in vain here."""
    error = KeyReused(
        "This Idempotency-Key was used for a different request; use a new key.",
        param="Idempotency-Key",
    )
    error.fields |= charged_as
    return error
