"""A copy of one collection of the cluster, kept by a watch, never older than our own writes.

The copy is used only while the watch that began at its version is open. When the watch ends,
however it ends (a dropped connection, 410 Gone, the server's own limit), or after `invalidate`, the
next reader lists anew. So nothing has to be repaired, and a missed event lasts for one watch at
most.
"""

import asyncio
import contextlib
import logging

from headrace.base.errors import Unavailable
from headrace.launchers.kubernetes.cluster import Cluster, ClusterRefused
from headrace.launchers.kubernetes.parts import KubernetesObject

log = logging.getLogger(__name__)


class Mirror:
    """The objects of a collection that have the given labels."""

    def __init__(self, cluster: Cluster, path: str, selector: str, *, optional: bool) -> None:
        """`optional`: a cluster that does not have this kind has no objects of it."""
        self._cluster = cluster
        self._path = path
        self._selector = selector
        self._optional = optional
        self._objects: dict[str, KubernetesObject] = {}
        self._watch: asyncio.Task[None] | None = None
        self._is_valid = False
        self._lock = asyncio.Lock()

    async def objects(self) -> list[KubernetesObject]:
        """Every object, as new as our last write or the watch's last event."""
        async with self._lock:
            if not self._is_valid or self._watch is None or self._watch.done():
                await self._list()
            return list(self._objects.values())

    def invalidate(self) -> None:
        """Have the next reader list anew: we wrote, or have reason to doubt."""
        self._is_valid = False

    async def close(self) -> None:
        """End the watch."""
        if self._watch is not None:
            watch, self._watch = self._watch, None
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def _list(self) -> None:
        await self.close()  # its events are older than what comes now
        self._is_valid = True  # a write while we list makes it False again
        try:
            things, version = await self._cluster.list(self._path, self._selector)
        except ClusterRefused as error:
            self._is_valid = False
            if error.status == 404 and self._optional:
                self._objects = {}
                return
            raise
        except Unavailable:
            self._is_valid = False
            raise
        self._objects = {thing["metadata"]["name"]: thing for thing in things}
        self._watch = asyncio.create_task(self._follow(version))

    async def _follow(self, version: str) -> None:
        """Take events until the watch ends, however that is; the next reader lists, and tells."""
        try:
            async for event in self._cluster.watch(self._path, self._selector, version):
                thing = event["object"]
                name = thing["metadata"].get("name")
                if event["type"] == "DELETED":
                    self._objects.pop(name, None)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    self._objects[name] = thing
        except Unavailable as error:
            log.info("the watch of %s ended: %s", self._path, error.message)
        except Exception:
            log.exception("the watch of %s broke off", self._path)
