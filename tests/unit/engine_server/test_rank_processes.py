"""Ranks as processes: ready, failed, dead; a shell plays the rank."""

import json
import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import SetupError
from headrace.engine.placement import Device
from headrace.engine_server.devices import threads_of_rank
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.rank_processes import RankProcesses

Start = Callable[[str], RankProcesses]
two_nodes = (Device("cpu:0", (0, 1, 2)), Device("cpu:1", (3, 4)))


@pytest.fixture
def config(engine_config: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(engine_config, tensor_parallel=3)


@pytest.fixture
def started(config: EngineConfig) -> Iterator[Start]:
    """Starts two ranks beside the first, of a shell's words; they are ended at the end."""
    running: list[RankProcesses] = []

    def start(words: str) -> RankProcesses:
        running.append(RankProcesses(config, ("/bin/sh", "-c", words)))
        return running[-1]

    yield start
    for processes in running:
        processes.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_ranks_are_told_their_places_and_end_with_their_input(
    started: Start, tmp_path: Path
) -> None:
    words = f'read line; echo "$line" > {tmp_path}/$$; echo "{{}}"; cat > /dev/null'
    ranks = started(words)
    ranks.wait_ready()
    said = [json.loads((tmp_path / str(pid)).read_text()) for pid in ranks.pids]
    assert [(start["rank"], start["ranks"]) for start in said] == [(1, 3), (2, 3)]
    assert "fake.gguf" in said[0]["config"]
    assert (ranks.place.rank, ranks.place.ranks) == (0, 3)
    assert os.fstat(ranks.place.descriptor).st_size == 0
    ranks.close()
    assert not any(is_alive(pid) for pid in ranks.pids)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ('read line; echo "{\\"error\\": \\"no such tensor\\"}"', "rank 1 of 3 .*no such tensor"),
        ("exit 3", "rank 1 of 3 .*ended while it loaded: exit status 3"),
        ("kill -9 $$", "ended while it loaded: signal 9"),
    ],
)
def test_a_rank_that_cannot_load_says_why(started: Start, words: str, reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        started(words).wait_ready()


def test_a_death_is_told_and_an_end_is_not(started: Start) -> None:
    deaths: queue.Queue[str] = queue.Queue()
    for words in ('read line; echo "{}"; read line', 'read line; echo "{}"; kill -9 $$'):
        ranks = started(words)
        ranks.wait_ready()
        ranks.watch(deaths.put)
        if "kill" in words:
            assert "ended: signal 9; the engine cannot go on" in deaths.get(timeout=20)
        else:
            ranks.close()
            assert deaths.empty()


def test_ranks_share_the_threads_or_the_cores_of_their_device(config: EngineConfig) -> None:
    ranks = (two_nodes[0], two_nodes[0], two_nodes[1])
    assert [threads_of_rank(config, rank, ranks) for rank in range(3)] == [1, 1, 2]
    told = msgspec.structs.replace(config, threads=6)
    assert [threads_of_rank(told, rank, ranks) for rank in range(3)] == [2, 2, 2]
