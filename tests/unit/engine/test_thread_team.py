"""A team of threads gives one thread's bits, however late its members come to a stage.

Here they always are: there are more of them than cores, and all but the caller run only when nobody
else wants a core.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.engine.cpu_runner import CpuRunner
from headrace.sim.small_model import (
    SmallModel,
    Work,
    base_spec,
    blocks_of,
    runner_of,
    small_model,
    step,
    tokens_of,
)

threads = 3 * (os.cpu_count() or 1)
rows = (1, 40, 2, 33, 1, 7) * 20  # of each step: experts have other blocks, stages other counts
specs = {
    "dense": base_spec,
    "experts": replace(base_spec, expert_count=8, experts_used=2, expert_ffn_size=96),
}


def thread_ids() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


@contextmanager
def idle_team(model: SmallModel) -> Iterator[CpuRunner]:
    """A runner whose threads give way to all others."""
    before = thread_ids()
    with runner_of(model, threads=threads) as runner:
        for thread in thread_ids() - before:
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        yield runner


def logits_of(runner: CpuRunner, count: int) -> NDArray[np.uint32]:
    work = Work(tokens_of(count, seed=count), 0, blocks_of(3))
    return runner.execute_logits(step([work, replace(work, blocks=blocks_of(6)[3:])]))[1].view(
        np.uint32
    )


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
@pytest.mark.parametrize("name", list(specs))
@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
def test_late_members_change_nothing(name: str, type_name: str) -> None:
    model = small_model(specs[name], type_name)
    with runner_of(model, threads=1) as alone:
        expected = {count: logits_of(alone, count) for count in set(rows)}
    with idle_team(model) as team:
        for count in rows:
            assert (logits_of(team, count) == expected[count]).all()
