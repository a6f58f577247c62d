"""A watch that ends, however that is, costs its reader another list and nothing else."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest

from headrace.base.errors import Unavailable
from headrace.launchers.kubernetes.cluster import Cluster
from headrace.launchers.kubernetes.mirror import Mirror


class BreakingCluster:
    """One pod, and watches that break."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.lists = 0

    async def list(self, path: str, selector: str) -> tuple[list[Mapping[str, Any]], str]:
        self.lists += 1
        return [{"metadata": {"name": "pod"}}], "1"

    async def watch(self, path: str, selector: str, version: str) -> AsyncIterator[Any]:
        yield {"type": "ADDED", "object": {"metadata": {"name": "other"}}}
        raise self.error


@pytest.mark.parametrize("error", [Unavailable("away"), ConnectionResetError(), KeyError("type")])
async def test_a_watch_that_breaks_is_begun_anew_by_the_next_reader(error: Exception) -> None:
    cluster = BreakingCluster(error)
    mirror = Mirror(cast(Cluster, cluster), "/pods", "app=headrace", optional=False)
    for lists in (1, 2, 3):
        assert len(await mirror.objects()) == 1
        assert cluster.lists == lists
        for _ in range(5):
            await asyncio.sleep(0)
    await mirror.close()
