"""Keeps the snapshot at the store's revision, and the last good one while the store is away.

PostgreSQL tells of a change as it happens; besides, and with SQLite alone, one cheap read every
`poll_interval_s` tells whether anything changed. So a revoked key or a dead replica is known
everywhere within that time and one load, and mostly within the load alone. Keys of engines that
others run lie in files, which are read anew every `key_look_interval_s`.
"""

import asyncio
import logging
from contextlib import suppress

import msgspec

from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.gateway.snapshot import ResourceReader, Snapshot, key_at, read_snapshot
from headrace.router.endpoint_set import EndpointSet
from headrace.storage.changes import Changes, PolledChanges

poll_interval_s = 0.25
key_look_interval_s = 2.0  # how late a renewed key file is noticed
refresh_interval_s = 0.02  # between looks that refusals ask for: bounds what they cost the store
refresh_wait_s_max = 1.0  # for such a look; a store that hangs must not keep who is refused

log = logging.getLogger(__name__)


class SnapshotFollower:
    """The newest snapshot, and the endpoint set that goes with it."""

    def __init__(
        self,
        store: ResourceReader,
        endpoints: EndpointSet,
        clock: Clock,
        pepper: bytes,
        changes: Changes | None = None,
    ) -> None:
        """`changes` are the follower's own, and closed by it; None: it looks now and then."""
        self._store = store
        self._pepper = pepper
        # What is polled anyway needs no thread for it.
        self._changes = None if isinstance(changes, PolledChanges) else changes
        self._endpoints = endpoints
        self._clock = clock
        self._checked_s = clock.monotonic_s()
        self._next_look: asyncio.Task[None] | None = None  # that has not begun
        self._looks: set[asyncio.Task[None]] = set()  # at most the next one and one under way
        self._looking = asyncio.Lock()
        self._look_after_s = clock.monotonic_s()
        self._keys_looked_s = clock.monotonic_s()
        self._loading = asyncio.Lock()  # an older snapshot must not replace a newer one
        self._away = Absence(log, clock, "serving from the last snapshot", "the store is back")
        self.snapshot = Snapshot()

    @property
    def age_s(self) -> float:
        """How long ago the store last confirmed the snapshot."""
        return self._clock.monotonic_s() - self._checked_s

    async def load(self) -> None:
        """Take the store's state if it changed; raises what the store raises."""
        async with self._loading:
            snapshot = await asyncio.to_thread(self._read_if_changed)
            self._checked_s = self._clock.monotonic_s()
            if snapshot is not None:
                self._endpoints.update(snapshot.endpoints)
                self.snapshot = snapshot

    async def refresh(self) -> None:
        """Look at the store, before a request is refused for what that may know by now.

        Returns once a look that began after the call is over, which all share who asked before it
        began. There is at most one in `refresh_interval_s`, and they take at most half of the time,
        however many ask. A store that is away changes nothing; one that hangs is not waited for."""
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look())
            self._looks.add(self._next_look)
            self._next_look.add_done_callback(self._looks.discard)
        await asyncio.wait((self._next_look,), timeout=refresh_wait_s_max)

    async def snapshot_with(self, model_name: str) -> Snapshot:
        """The snapshot; one that does not know the model is made anew first, as that may be new."""
        if self.snapshot.find(model_name) is None:
            await self.refresh()
        return self.snapshot

    async def _look(self) -> None:
        async with self._looking:
            await asyncio.sleep(max(0.0, self._look_after_s - self._clock.monotonic_s()))
            self._next_look = None
            began_s = self._clock.monotonic_s()
            with suppress(HeadraceError, msgspec.MsgspecError):
                await self.load()
            ended_s = self._clock.monotonic_s()
            self._look_after_s = ended_s + max(refresh_interval_s, ended_s - began_s)

    async def follow(self) -> None:
        """Take every change until cancelled."""
        try:
            while True:
                await self._wait()
                await self._load_or_go_on()
        finally:
            looks = [*self._looks]
            for look in looks:
                look.cancel()
            await asyncio.gather(*looks, return_exceptions=True)
            if self._changes is not None:
                self._changes.close()

    async def _wait(self) -> None:
        """Return when the store has changed, may have, or after `poll_interval_s`."""
        if self._changes is None:
            await asyncio.sleep(poll_interval_s)
            return
        waiting = asyncio.ensure_future(asyncio.to_thread(self._changes.wait, poll_interval_s))
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await waiting  # a thread cannot be cancelled, and it uses the connection
            raise

    async def _load_or_go_on(self) -> None:
        try:
            await self.load()
        except (HeadraceError, msgspec.MsgspecError) as error:
            self._away.note(error)
        else:
            self._away.end()

    def _read_if_changed(self) -> Snapshot | None:
        is_new = self._store.revision() != self.snapshot.revision
        if not is_new and not self._keys_were_renewed():
            return None
        return read_snapshot(self._store, self._pepper)

    def _keys_were_renewed(self) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s - self._keys_looked_s < key_look_interval_s:
            return False
        self._keys_looked_s = now_s
        return any(key_at(each) != key for each, key in self.snapshot.others_keys.items())
