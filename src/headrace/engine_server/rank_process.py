"""A rank beside the engine process: loads its part of the model and computes what rank 0 is asked.

    python -m headrace.engine_server.rank_process DESCRIPTOR

DESCRIPTOR is of the memory that the ranks share, through which steps come (in C++,
csrc/base/rank_group.hpp); no Python runs between them. A second thread loads adapters meanwhile.
How it starts and ends: rank_processes.py.
"""

import ctypes
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, NoReturn

import msgspec

from headrace.base.errors import HeadraceError, ModelFileError
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.encoder import Encoder
from headrace.engine.ranks import RankPlace
from headrace.engine.runner import AdapterRunner
from headrace.engine_server import adapter_shelf
from headrace.engine_server.encoder_process import is_encoder, open_encoder
from headrace.engine_server.loading import open_runner, out_of_memory
from headrace.engine_server.rank_processes import (
    RankLoad,
    RankOrder,
    RankReport,
    RankStart,
    RankUnload,
    end_engine,
)
from headrace.engine_server.weights_check import start_check
from headrace.weights.lora.opening import open_adapter

parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)


def main(arguments: list[str]) -> None:
    """Serve rank 0 until it is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # of the terminal; rank 0's end is this one's
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=RankStart)
    loaded: SimpleQueue[CpuRunner] = SimpleQueue()
    rank_max = start.config.adapter_rank_max
    threading.Thread(
        target=obey_until_end, args=(sys.stdin.buffer, loaded, rank_max), daemon=True
    ).start()
    runner = _load(start, int(arguments[0]))
    if isinstance(runner, CpuRunner):
        loaded.put(runner)  # an encoder is told of no adapters
    _say(RankReport())
    start_check(runner, end_engine)
    runner.serve()
    leave(0)


def end_with_parent() -> None:
    """Have the system end this process with the first rank, even where it is stopped (SIGSTOP).

    A stopped process reads no end of its input, and would keep its weights. Linux only; it is the
    thread that started this one whose end counts, the first rank's main thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


def obey_until_end(stream: BinaryIO, loaded: "SimpleQueue[CpuRunner]", rank_max: int) -> None:
    """Carry out orders; end this process when the stream does: rank 0 is gone."""
    try:
        runner = None
        for line in stream:
            runner = runner or loaded.get()  # orders come once this rank has said that it is ready
            report = carry_out(runner, msgspec.json.decode(line, type=RankOrder), rank_max)
            if report is not None:
                _say(report)
    finally:  # after an error too: without this thread nothing would end the process
        error = sys.exception()
        if error is not None:
            traceback.print_exception(error)
        leave(0 if error is None else 1)


def carry_out(runner: AdapterRunner, order: RankOrder, rank_max: int) -> RankReport | None:
    """Load or free an adapter's slot; what to report, if anything."""
    if isinstance(order, RankUnload):
        runner.unload_adapter(order.slot)
        return None
    try:
        _load_adapter(runner, order, rank_max)
    except HeadraceError as error:
        return RankReport(error.message)
    except MemoryError:
        return RankReport(adapter_shelf.out_of_memory)
    return RankReport()


def _load_adapter(runner: AdapterRunner, order: RankLoad, rank_max: int) -> None:
    adapter = open_adapter(Path(order.path), runner.spec, rank_max)
    if adapter.digest != order.digest:
        raise ModelFileError(
            f"{order.path}: the adapter changed while it was loaded; load it again.",
            file=order.path,
        )
    runner.load_adapter(order.slot, adapter)


def leave(status: int) -> NoReturn:
    """End without Python's own end, which aborts while a thread reads standard input."""
    os._exit(status)


def _load(start: RankStart, descriptor: int) -> CpuRunner | Encoder:
    place = RankPlace(start.rank, start.ranks, descriptor)
    try:
        if is_encoder(start.config):
            return open_encoder(start.config, _report_nothing, place)
        return open_runner(start.config, _report_nothing, place)
    except HeadraceError as error:
        reason = error.message
    except MemoryError:
        reason = out_of_memory
    _say(RankReport(reason))
    leave(1)


def _report_nothing(_detail: str, _progress: float) -> None:
    """The first rank tells how far the start is."""


def _say(report: RankReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
