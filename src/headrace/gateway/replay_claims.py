"""`Idempotency-Key`s beyond the memory of one gateway: claimed in the store before anything runs.

    claimed      the request runs here; ended well it stays claimed for the window, else it is freed
    not free     another gateway runs it, or its answer is gone with the one that had it: 409
    store away   the keys hold within this gateway's life alone

After a crash the claims that it left open are kept where a settlement says that the request was
finished, in the journal or in the ledger, and freed otherwise.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress

from headrace.base.clock import Clock
from headrace.base.errors import Conflict, HeadraceError
from headrace.ledger.journal import Journal
from headrace.ledger.journal_reader import JournalReader
from headrace.ledger.reservation import Outcome
from headrace.storage.replay_claims import Change, Claim, Finish, Release, ReplayClaims

replay_window_s = 600.0  # of a request that ended well
write_timeout_s = 5.0  # a store that takes longer counts as away
running_window_s = 7200.0  # of a claim whose gateway never came back
fallbacks_max = 8  # models that a request may have been settled by, after the first
settlements_per_read = 1_000


class KeyClaims:
    """The claims of one gateway; one event loop uses it.

    One write is under way at a time, and what comes meanwhile goes with the next: a transaction
    costs far more than the rows in it. At most `idempotency.running_max` wait."""

    def __init__(self, store: ReplayClaims, journal: Journal, clock: Clock) -> None:
        self._store = store
        self._journal = journal
        self._clock = clock
        self._waiting: list[tuple[Change, asyncio.Future[Claim | None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def take(self, digest: str, fingerprint: bytes, request_id: str) -> None:
        """Claim a key for a request, which nothing runs here; Conflict if it ran, or runs
        elsewhere."""
        now_s = self._clock.wall_s()
        claim = Claim(
            digest=digest,
            fingerprint=fingerprint.hex(),
            request_id=request_id,
            gateway_id=self._journal.journal_id,
            claim_time=now_s,
            expire_time=now_s + running_window_s,
        )
        standing = await self._write(claim)
        if standing is not None and self._is_left_open(standing):
            with suppress(HeadraceError):
                await asyncio.to_thread(self._close, [standing])
            standing = await self._write(claim)
        if standing is not None:
            raise conflict(standing, claim)

    async def finish(self, digest: str) -> None:
        """The request ended well."""
        await self._write(Finish(digest, self._clock.wall_s() + replay_window_s))

    async def release(self, digest: str) -> None:
        """The request came to nothing: the same key may run it again."""
        await self._write(Release(digest))

    async def recover(self) -> None:
        """Call once before serving, when what a crash left running is settled."""
        with suppress(HeadraceError):
            await asyncio.to_thread(self._recover)

    async def _write(self, change: Change) -> Claim | None:
        """The claim that stands in the way; None if there is none, or the store is away."""
        written: asyncio.Future[Claim | None] = asyncio.get_running_loop().create_future()
        waits = (change, written)
        self._waiting.append(waits)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        try:
            async with asyncio.timeout(write_timeout_s):
                return await written
        except (HeadraceError, TimeoutError):
            return None
        finally:
            if waits in self._waiting:
                self._waiting.remove(waits)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._write_batch(batch)
        finally:
            self._writer = None

    async def _write_batch(
        self, batch: Sequence[tuple[Change, asyncio.Future[Claim | None]]]
    ) -> None:
        try:
            found = await asyncio.to_thread(self._store.write, [change for change, _ in batch])
        except HeadraceError as error:
            for _, written in batch:
                if not written.done():
                    written.set_exception(error)
            return
        for (_, written), standing in zip(batch, found, strict=True):
            if not written.done():
                written.set_result(standing)

    def _is_left_open(self, standing: Claim) -> bool:
        """Whether it is ours, of a request that ended here while the store was away."""
        return standing.gateway_id == self._journal.journal_id and not standing.is_done

    def _recover(self) -> None:
        self._close(self._store.unfinished(self._journal.journal_id))

    def _close(self, claims: Sequence[Claim]) -> None:
        """End claims that nothing runs under any more, as their requests ended."""
        if not claims:  # nearly always
            return
        finished = self._finished(claim.request_id for claim in claims)
        self._store.write(
            [
                Finish(claim.digest, claim.claim_time + replay_window_s)
                if claim.request_id in finished
                else Release(claim.digest)
                for claim in claims
            ]
        )

    def _finished(self, request_ids: Iterable[str]) -> set[str]:
        """Which of these requests were finished, by whichever model."""
        wanted = {
            settled_id: request_id
            for request_id in request_ids
            for settled_id in (request_id, *(f"{request_id}.{n + 1}" for n in range(fallbacks_max)))
        }
        found = {wanted[settled_id] for settled_id in self._store.finished_among(wanted)}
        reader = JournalReader(self._journal.directory)
        while records := reader.read(self._journal.durable_sequence, settlements_per_read):
            found |= {
                wanted[settlement.request_id]
                for _, settlement in records
                if settlement.outcome is Outcome.FINISHED and settlement.request_id in wanted
            }
        return found


def digest_of(api_key_id: str, idempotency_key: str) -> str:
    """What a key is claimed under."""
    text = f"{api_key_id}\0{idempotency_key}".encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def conflict(standing: Claim, wanted: Claim) -> Conflict:
    """Why a key is not free."""
    if standing.fingerprint != wanted.fingerprint:
        text = "This Idempotency-Key was used for a different request; use a new key."
    elif standing.is_done:
        text = (
            f"The request with this Idempotency-Key was answered and charged as "
            f"{standing.request_id}; the answer is not kept here any more, and it is not run "
            "again. Use a new key to run it anew."
        )
    else:
        text = (
            "The request with this Idempotency-Key runs at another gateway, or ended with it; "
            "ask there, or use a new key."
        )
    return Conflict(text, param="Idempotency-Key", request_id=standing.request_id)
