"""The engine process with the fake runner in it: a real process and socket, and no model file.

    python -m headrace.sim.engine_process serve|refuse|crash|poisoned FD

`refuse` cannot load and says why; `crash` ends without a word at once, `poisoned` at the first step
with more than `poison_rows` rows.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable

from headrace.base.errors import ModelFileError
from headrace.engine.runner import ModelRunner, StepBatch
from headrace.engine_server.engine_process import EngineProcess
from headrace.engine_server.loading import ReportLoading
from headrace.engine_server.messages import EngineConfig
from headrace.sim.runner import FakeModel, FakeRunner

block_size_tokens = 16
crash_status = 3
poison_rows = 4


def command(behaviour: str = "serve") -> tuple[str, ...]:
    """What EngineClient runs to get this process."""
    return (sys.executable, "-m", "headrace.sim.engine_process", behaviour)


def load_fake_runner(config: EngineConfig, report: ReportLoading) -> ModelRunner:
    """A fake runner of the size that was asked for."""
    return _fake_runner(config, report, lambda batch: None)


def _poisoned(config: EngineConfig, report: ReportLoading) -> ModelRunner:
    def die_of(batch: StepBatch) -> None:
        if len(batch.token_ids) > poison_rows:
            os._exit(crash_status)

    return _fake_runner(config, report, die_of)


def _fake_runner(
    config: EngineConfig, report: ReportLoading, during_step: Callable[[StepBatch], None]
) -> ModelRunner:
    report("pretending", 0.5)
    return FakeRunner(
        FakeModel(vocab_size=256),
        num_blocks=config.kv_tokens // block_size_tokens,
        block_size_tokens=block_size_tokens,
        max_model_len=config.context_length or config.kv_tokens,
        rows_max=config.step_rows,
        sequences_max=config.sequences_max,
        during_step=during_step,
        adapters_max=config.adapters_max,
    )


def _refuse(config: EngineConfig, report: ReportLoading) -> ModelRunner:
    raise ModelFileError(f"{config.model_path} is no model")


def main(arguments: list[str]) -> None:
    """Behave as the first argument says."""
    behaviour, descriptor = arguments
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if behaviour == "crash":
        os._exit(crash_status)
    load = {"serve": load_fake_runner, "refuse": _refuse, "poisoned": _poisoned}[behaviour]
    with socket.socket(fileno=int(descriptor)) as sock:
        EngineProcess(sock, load).run()


if __name__ == "__main__":
    main(sys.argv[1:])
