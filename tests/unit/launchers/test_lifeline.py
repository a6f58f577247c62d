import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.launchers import lifeline

watcher = """
import signal, subprocess, sys
from headrace.launchers import lifeline
lifeline.watch_from_environment()
print("watching", flush=True)
signal.pause()
"""
parent = """
import subprocess, sys
from headrace.launchers import lifeline
descriptor = lifeline.inherited_descriptor()
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], pass_fds=(descriptor,))
print("parent", flush=True)
child.wait()
"""


def start(line: lifeline.Lifeline, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", *arguments],
        env={**os.environ, **line.environment},
        pass_fds=(line.descriptor,),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_watching_process_ends_with_the_supervisors_end() -> None:
    line = lifeline.create()
    with start(line, watcher) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
        assert process.poll() is None
        line.close()

        assert process.wait() == -signal.SIGKILL


def test_a_process_that_starts_too_late_ends_at_once() -> None:
    line = lifeline.create()
    late = os.dup(line.descriptor)
    line.close()
    orphan = lifeline.Lifeline(late, -1)
    with start(orphan, watcher) as process:
        assert process.wait() != 0
    os.close(late)


def test_a_grandchild_ends_although_its_parent_was_killed_before() -> None:
    line = lifeline.create()
    with start(line, parent, watcher) as process:
        assert process.stdout is not None
        words = {process.stdout.readline(), process.stdout.readline()}
        assert words == {"parent\n", "watching\n"}
        process.kill()
        process.wait()
        line.close()

        assert process.stdout.read() == ""  # the grandchild held it open until its end


def test_closing_twice_closes_nothing_else() -> None:
    line = lifeline.create()
    line.close()
    reader, writer = os.pipe()  # takes the numbers that were free
    line.close()

    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("value", ["", "x", "-1", "99999"])
def test_a_variable_that_names_no_pipe_is_no_lifeline(value: str) -> None:
    assert lifeline.inherited_descriptor({lifeline.variable: value}) is None


def test_a_number_that_is_another_file_by_now_is_no_lifeline(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        environment = {lifeline.variable: str(file.fileno())}
        assert lifeline.inherited_descriptor(environment) is None
