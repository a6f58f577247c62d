"""A guard is its program to whoever looks from outside, and ends it with the lifeline."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

import psutil
import pytest

from headrace.launchers import lifeline
from headrace.launchers.guard import guarded

waits = (sys.executable, "-S", "-c", "print('up', flush=True); import signal; signal.pause()")


@pytest.fixture
def line() -> Iterator[lifeline.Lifeline]:
    made = lifeline.create()
    yield made
    made.close()


def start(
    argv: tuple[str, ...], descriptor: int | None = None, environment: Mapping[str, str] = {}
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        guarded(argv),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        pass_fds=() if descriptor is None else (descriptor,),
        start_new_session=True,
    )


def test_it_ends_as_its_program_did() -> None:
    guard = start((sys.executable, "-S", "-c", "import sys; print('words'); sys.exit(7)"))

    assert guard.communicate(timeout=60)[0] == "words\n"
    assert guard.returncode == 7


def test_a_program_that_is_not_there_is_told_in_one_line() -> None:
    guard = start(("no-such-engine", "--port", "1"))
    errors = guard.communicate(timeout=60)[1]

    assert guard.returncode == 127
    assert errors.startswith("cannot run no-such-engine")
    assert len(errors.splitlines()) == 1


def test_sigterm_reaches_the_program() -> None:
    guard = start(waits)
    assert guard.stdout is not None
    assert guard.stdout.readline() == "up\n"
    guard.send_signal(signal.SIGTERM)
    errors = guard.communicate(timeout=60)[1]

    assert guard.returncode == 128 + signal.SIGTERM
    assert "signal 15" in errors


def test_the_end_of_the_lifeline_ends_the_program_too(line: lifeline.Lifeline) -> None:
    guard = start(waits, line.descriptor, line.environment)
    assert guard.stdout is not None
    assert guard.stdout.readline() == "up\n"
    (program,) = psutil.Process(guard.pid).children()
    line.close()

    guard.communicate(timeout=60)
    assert guard.returncode == -signal.SIGKILL
    psutil.wait_procs([program], timeout=60)
    assert not program.is_running() or program.status() == psutil.STATUS_ZOMBIE
