"""A node's weight cache within its budget, and never at the cost of what runs."""

import fcntl
import os
from pathlib import Path

import pytest

from headrace.control.nodes.cache_keeper import CacheKeeper, needed_paths
from headrace.sim.clock import ManualClock
from headrace.spec.nodes import LaunchOrder, NodeOrders

size_bytes = 100


def blob(root: Path, number: int) -> Path:
    """A cached model file; the higher its number, the later it was used."""
    path = root / "blobs" / "sha256" / f"{number:064x}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size_bytes)
    os.utime(path, (float(number), 1.0))
    return path


@pytest.fixture
def blobs(tmp_path: Path) -> list[Path]:
    return [blob(tmp_path, number) for number in range(4)]


def keeper(root: Path, budget: int | None) -> CacheKeeper:
    return CacheKeeper(root, budget, ManualClock())


def left(blobs: list[Path]) -> list[int]:
    return [number for number, path in enumerate(blobs) if path.exists()]


def test_what_was_unused_for_longest_makes_room(tmp_path: Path, blobs: list[Path]) -> None:
    kept = keeper(tmp_path, 2 * size_bytes)
    kept.tidy(())
    assert left(blobs) == [2, 3]
    report = kept.report
    assert (report.size_bytes, report.size_bytes_max) == (2 * size_bytes, 2 * size_bytes)
    assert report.removed_count == 2


def test_what_is_needed_stays_however_old_it_is_and_however_small_the_budget(
    tmp_path: Path, blobs: list[Path]
) -> None:
    kept = keeper(tmp_path, 2 * size_bytes)
    kept.tidy([str(blobs[0])])
    assert left(blobs) == [0, 3]  # the needed one counts
    keeper(tmp_path, 0).tidy([str(blobs[0])])
    assert left(blobs) == [0]


def test_what_a_process_holds_stays(tmp_path: Path, blobs: list[Path]) -> None:
    with blobs[0].open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        kept = keeper(tmp_path, 0)
        kept.tidy(())
        assert left(blobs) == [0]
        assert kept.report.size_bytes == size_bytes
    keeper(tmp_path, 0).tidy(())
    assert left(blobs) == []


def test_without_a_budget_the_size_is_told_and_nothing_goes(
    tmp_path: Path, blobs: list[Path]
) -> None:
    kept = keeper(tmp_path, None)
    kept.tidy(())
    assert left(blobs) == [0, 1, 2, 3]
    assert (kept.report.size_bytes, kept.report.size_bytes_max) == (4 * size_bytes, None)


def test_what_a_command_mentions_is_needed() -> None:
    argv = ("vllm", "serve", "/cache/a", "--model=/cache/b", "--lora", "sql=/cache/c", "--x", "1")
    launch = LaunchOrder(launch_id="nln_1", replica_id="rep_1", argv=argv)
    orders = NodeOrders(node_name="a", report_interval_s=1.0, launches=(launch,))
    assert needed_paths(orders, ["/cache/d", None]) == [
        "/cache/d",
        "/cache/a",
        "/cache/b",
        "/cache/c",
    ]
