"""Runs a program that knows nothing of the lifeline, and ends with it.

    python -m headrace.launchers.guard PROGRAM ARGUMENT ...

The guard leads the process group that the program is in, so the end of the lifeline ends both. It
passes SIGTERM and SIGINT on and ends as the program did.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from headrace.launchers import lifeline

module = "headrace.launchers.guard"
cannot_run_status = 127  # as shells report it
signal_status_base = 128


def guarded(argv: Sequence[str]) -> tuple[str, ...]:
    """The command that runs `argv` under a guard."""
    return (sys.executable, "-m", module, *argv)


def main(argv: Sequence[str]) -> int:
    """Run a program to its end; its exit status, 128 and the number where a signal ended it."""
    lifeline.watch_from_environment()
    asked: list[int] = []  # signals that came before there was a program
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if process is None:
            asked.append(number)
        else:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    try:
        process = subprocess.Popen(argv)  # noqa: S603 -- an adapter's command, without a shell
    except OSError as error:
        sys.stderr.write(
            f"cannot run {argv[0]} ({error.strerror}); install it, or put it on PATH\n"
        )
        return cannot_run_status
    for number in asked:
        process.send_signal(number)
    status = process.wait()
    if status >= 0:
        return status
    sys.stderr.write(f"{argv[0]} was ended by signal {-status}\n")
    return signal_status_base - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
