"""`headrace serve --tensor-parallel-size 2`: the same answers, and no rank without the others."""

import json
import os
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from headrace.sim.adapter_files import write_adapter
from headrace.sim.child_process import wait_until
from headrace.sim.model_on_disk import write_model_file
from headrace.sim.serve_process import ServeProcess
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf

pytestmark = pytest.mark.e2e

prompts = ["the weir", "a lock", "water over stones" * 12, "x"]
damage = "packed weights in the model cache are not what was written"
options = ("--threads", "2", "--kv-tokens", "1024", "--step-timeout", "60")


def answer(served: ServeProcess, prompt: str, adapter: str = "") -> str:
    model = f"{served.model}:{adapter}" if adapter else served.model
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0}
    request = urllib.request.Request(
        served.url + "/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=100) as response:
        text: str = json.load(response)["choices"][0]["text"]
    return text


def answers(served: ServeProcess) -> list[str]:
    """All prompts at once, each twice: the second time from the prefix cache."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        first = list(pool.map(lambda prompt: answer(served, prompt), prompts))
        assert list(pool.map(lambda prompt: answer(served, prompt), prompts)) == first
    return first


def test_two_ranks_answer_through_an_adapter_as_one_does(tmp_path: Path) -> None:
    model = write_model_file(tmp_path / "weir.gguf", layers=2)
    with open_gguf(model) as file:
        adapter = write_adapter(tmp_path / "sql", read_architecture(file), seed=1)
    cache = {"HEADRACE_CACHE_DIR": str(tmp_path / "cache")}
    words = (str(model), *options, "--lora", f"sql={adapter}")
    found = []
    for ranks in ("1", "2"):
        with (
            ServeProcess.start(*words, "-tp", ranks, environment=cache) as served,
            ThreadPoolExecutor(4) as pool,
        ):
            ask = partial(answer, served, prompts[0])
            found.append(list(pool.map(ask, ["", "sql"] * 2)))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def flip_a_bit(path: Path) -> bytes:
    """Damage the last weight that a file of packed weights has; what it was."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-70] + bytes([whole[-70] ^ 1]) + whole[-69:])
    return whole


def test_damaged_packed_weights_are_packed_anew_by_any_rank(tmp_path: Path) -> None:
    model = str(write_model_file(tmp_path / "weir.gguf", layers=2))
    cache = {"HEADRACE_CACHE_DIR": str(tmp_path / "cache")}
    with ServeProcess.start(model, *options, "-tp", "2", environment=cache) as served:
        expected = answers(served)
    parts = sorted((tmp_path / "cache" / "packed").iterdir())
    assert [part.stem[-4:] for part in parts] == ["0of2", "1of2"]
    for part in parts:
        whole = flip_a_bit(part)
        with ServeProcess.start(model, *options, "-tp", "2", environment=cache) as served:
            wait_until(lambda: damage in "\n".join(served.output))
            assert answers(served) == expected
        assert part.read_bytes() == whole


def children_of(pid: int) -> list[int]:
    return [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ranks_of(served: ServeProcess) -> tuple[int, int]:
    """The engine process and the rank beside it."""
    (engine,) = children_of(served.process.pid)
    (rank,) = children_of(engine)
    return engine, rank


def test_a_stopped_rank_is_ended_with_its_engine_and_the_request_goes_on(tmp_path: Path) -> None:
    model = str(write_model_file(tmp_path / "weir.gguf", layers=2))
    quick = (*options[:-1], "2")  # seconds without a step
    cache = {"HEADRACE_CACHE_DIR": str(tmp_path / "cache")}
    with ServeProcess.start(model, *quick, "-tp", "2", environment=cache) as served:
        expected = answer(served, prompts[0])
        engine, rank = ranks_of(served)
        os.kill(rank, signal.SIGSTOP)
        assert answer(served, prompts[0]) == expected
        wait_until(lambda: not is_alive(rank))
        assert not is_alive(engine)
        _, last = ranks_of(served)
        os.kill(last, signal.SIGSTOP)
    assert not is_alive(last)


def test_two_ranks_answer_as_one_does_and_come_back_when_one_is_killed(tmp_path: Path) -> None:
    model = str(write_model_file(tmp_path / "weir.gguf", layers=2))
    cache = {"HEADRACE_CACHE_DIR": str(tmp_path / "cache")}
    with ServeProcess.start(model, *options, environment=cache) as served:
        expected = answers(served)
    with ServeProcess.start(model, *options, "-tp", "2", environment=cache) as served:
        assert answers(served) == expected
        said = "\n".join(served.output)
        assert "memory: rank 0 on cpu:" in said
        assert "memory: rank 1 on cpu:" in said
        engine, rank = ranks_of(served)
        os.kill(rank, signal.SIGKILL)
        wait_until(lambda: not is_alive(engine))
        assert answers(served) == expected  # asked while the engine is away, they wait
        assert f"rank 1 of 2 (process {rank}) ended: signal 9" in "\n".join(served.output)
        last = ranks_of(served)
        assert not {engine, rank} & set(last)
    assert not any(is_alive(pid) for pid in last)
