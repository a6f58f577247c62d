"""A rank beside the engine process: loads its part of the model and computes what rank 0 is asked.

    python -m headrace.engine_server.rank_process DESCRIPTOR

DESCRIPTOR is of the memory that the ranks share, through which steps come (in C++,
csrc/base/rank_group.hpp); no Python runs between them. How it starts and ends: rank_processes.py.
"""

import os
import signal
import sys
import threading
from typing import BinaryIO, NoReturn

import msgspec

from headrace.base.errors import HeadraceError
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.ranks import RankPlace
from headrace.engine_server.loading import open_runner, out_of_memory
from headrace.engine_server.rank_processes import RankReport, RankStart


def main(arguments: list[str]) -> None:
    """Serve rank 0 until it is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # of the terminal; rank 0's end is this one's
        signal.signal(number, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    threading.Thread(target=end_with, args=(sys.stdin.buffer,), daemon=True).start()
    start = msgspec.json.decode(line, type=RankStart)
    runner = _load(start, int(arguments[0]))
    _say(RankReport())
    runner.serve()
    leave(0)


def end_with(stream: BinaryIO) -> None:
    """End this process when the stream does: rank 0 is gone."""
    stream.read()
    leave(0)


def leave(status: int) -> NoReturn:
    """End without Python's own end, which aborts while a thread reads standard input."""
    os._exit(status)


def _load(start: RankStart, descriptor: int) -> CpuRunner:
    place = RankPlace(start.rank, start.ranks, descriptor)
    try:
        return open_runner(start.config, lambda _detail, _progress: None, place)
    except HeadraceError as error:
        reason = error.message
    except MemoryError:
        reason = out_of_memory
    _say(RankReport(reason))
    leave(1)


def _say(report: RankReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
