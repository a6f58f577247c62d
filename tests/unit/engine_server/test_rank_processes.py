"""Ranks as processes: ready, failed, dead; a shell plays the rank."""

import json
import os
import queue
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.base.errors import SetupError
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.placement import Device
from headrace.engine_server.devices import threads_of_rank
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.rank_process import carry_out
from headrace.engine_server.rank_processes import (
    RankLoad,
    RankProcesses,
    RankReport,
    RankUnload,
)
from headrace.sim.adapter_files import write_adapter
from headrace.sim.small_model import Work, base_spec, small_model, step
from headrace.weights.lora.adapter import LoraAdapter
from headrace.weights.lora.opening import open_adapter
from headrace.weights.packed_cache import path_of_rank

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


def test_a_rank_that_does_not_get_ready_is_not_waited_for_without_end(started: Start) -> None:
    ranks = started("kill -STOP $$")
    with pytest.raises(SetupError, match=r"rank 1 of 3 .* see whether it is stopped"):
        ranks.wait_ready(wait_s=0.01)
    for pid in ranks.pids:  # so that they end with their input, not by the grace
        os.kill(pid, signal.SIGCONT)


def test_a_rank_that_says_nothing_of_an_adapter_is_killed(started: Start, tmp_path: Path) -> None:
    deaths: queue.Queue[str] = queue.Queue()
    ranks = started('read start; echo "{}"; read order; kill -STOP $$')
    ranks.wait_ready()
    ranks.watch(deaths.put)
    with pytest.raises(SetupError, match=r"rank 1 of 3 .* ended while it loaded: signal 9"):
        ranks.load_adapter(0, adapter_file(tmp_path), wait_s=0.01)
    assert "ended: signal 9; the engine cannot go on" in deaths.get(timeout=20)


def adapter_file(tmp_path: Path) -> LoraAdapter:
    path = write_adapter(tmp_path / "sql", base_spec, seed=1)
    return open_adapter(path, base_spec, 8)


def test_an_adapter_is_loaded_by_all_or_by_none(started: Start, tmp_path: Path) -> None:
    adapter = adapter_file(tmp_path)
    report = '{\\"error\\": \\"no room\\"}'
    words = (
        f'read start; echo "{{}}"; read first; echo "{{}}"; read second; echo "{report}"; '
        f'read third; printf "%s\\n" "$first" "$second" "$third" > {tmp_path}/$$; cat > /dev/null'
    )
    ranks = started(words)
    ranks.wait_ready()
    ranks.load_adapter(0, adapter)
    with pytest.raises(SetupError, match=r"rank 1 of 3 .*: no room"):
        ranks.load_adapter(1, adapter)
    ranks.close()
    loaded = {"path": str(adapter.path), "digest": adapter.digest, "type": "load"}
    for pid in ranks.pids:
        told = [json.loads(line) for line in (tmp_path / str(pid)).read_text().splitlines()]
        assert told == [{"slot": 0} | loaded, {"slot": 1} | loaded, {"slot": 1, "type": "unload"}]


def test_a_rank_that_ends_while_it_reads_an_adapter_is_told(started: Start, tmp_path: Path) -> None:
    ranks = started('read start; echo "{}"; read order; exit 5')
    ranks.wait_ready()
    with pytest.raises(SetupError, match="ended while it loaded: exit status 5"):
        ranks.load_adapter(0, adapter_file(tmp_path))


def test_a_rank_loads_what_the_first_one_read(tmp_path: Path) -> None:
    adapter = adapter_file(tmp_path)
    model = small_model()
    work = step([Work([5], 0, [3])])
    with CpuRunner(
        model, model.spec, kv_tokens=64, rows_max=8, sequences_max=2, threads=1, adapters_max=1
    ) as runner:
        plain = runner.execute_logits(work)[1]
        told = RankLoad(0, str(adapter.path), adapter.digest)
        assert carry_out(runner, told, 8) == RankReport()
        through = replace(work, adapters=np.zeros(1, np.int32))
        assert not np.array_equal(runner.execute_logits(through)[1], plain)
        other = carry_out(runner, RankLoad(0, str(adapter.path), "another"), 8)
        assert other is not None
        assert "changed while it was loaded" in other.error
        missing = carry_out(runner, RankLoad(0, str(tmp_path / "gone.gguf"), ""), 8)
        assert missing is not None
        assert "gone.gguf" in missing.error
        assert carry_out(runner, RankUnload(0), 8) is None
        with pytest.raises(ValueError, match="slot without an adapter"):
            runner.execute(through)


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


def test_a_rank_that_lost_a_page_of_its_weights_takes_the_files_with_it(
    config: EngineConfig, tmp_path: Path
) -> None:
    packed = tmp_path / "model.weights"
    parts = [path_of_rank(packed, rank, 3) for rank in range(3)]
    for part in parts:
        part.touch()
    deaths: queue.Queue[str] = queue.Queue()
    words = 'read line; echo "{}"; kill -BUS $$'
    ranks = RankProcesses(
        msgspec.structs.replace(config, packed_path=str(packed)), ("/bin/sh", "-c", words)
    )
    ranks.wait_ready()
    ranks.watch(deaths.put)
    assert "packed weights were removed" in deaths.get(timeout=20)
    assert not any(part.exists() for part in parts)
    ranks.close()


def test_ranks_share_the_threads_or_the_cores_of_their_device(config: EngineConfig) -> None:
    ranks = (two_nodes[0], two_nodes[0], two_nodes[1])
    assert [threads_of_rank(config, rank, ranks) for rank in range(3)] == [1, 1, 2]
    told = msgspec.structs.replace(config, threads=6)
    assert [threads_of_rank(told, rank, ranks) for rank in range(3)] == [2, 2, 2]
