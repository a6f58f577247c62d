"""`headrace run` as a person and as a script use it."""

import contextlib
import os
import pty
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
command = [sys.executable, "-m", "headrace.cli.main", "run", model]


def run(*arguments: str, piped: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        input=piped,
        stdin=subprocess.DEVNULL if piped is None else None,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_one_prompt_is_answered_on_standard_output_alone() -> None:
    ended = run("-p", "Name the capital of France.", "--temperature", "0", "--max-tokens", "20")
    assert ended.returncode == 0
    assert "Paris" in ended.stdout
    assert ended.stderr == ""


def test_a_seed_repeats_an_answer() -> None:
    options = ("-p", "Tell me a story.", "--seed", "5", "--max-tokens", "20")
    assert run(*options).stdout == run(*options).stdout


def test_piped_input_is_the_prompt() -> None:
    ended = run("--temperature", "0", "--max-tokens", "20", piped="Name the capital of France.")
    assert "Paris" in ended.stdout


def test_piped_input_follows_the_prompt() -> None:
    ended = run("-p", "Answer this:", "--temperature", "0", piped="Name the capital of France.")
    assert "Paris" in ended.stdout


def test_an_error_is_one_line() -> None:
    ended = run("-p", "word " * 20_000)
    assert ended.returncode == 1
    assert ended.stderr.startswith("headrace: This model's context holds")
    assert ended.stderr.count("\n") == 1


def test_empty_input_is_refused() -> None:
    ended = run(piped="")
    assert ended.returncode == 1
    assert "nothing to answer" in ended.stderr


class Typist:
    """Types into `headrace run` on a terminal and reads what it shows."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*command, "--temperature", "0"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)  # as a terminal does for Ctrl-C

    def read_until(self, wanted: str) -> str:
        shown = ""
        while wanted not in shown:
            shown += os.read(self._master, 4096).decode(errors="replace")
        return shown

    def leave(self) -> int:
        """Press Ctrl-C at the prompt, again if readline had not begun to listen for it."""
        for _ in range(60):
            self.interrupt()
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self.process.wait(1)
                os.close(self._master)
                return status
        raise AssertionError("Ctrl-C at the prompt does not leave")


def test_ctrl_c_stops_the_answer_and_at_the_prompt_it_leaves() -> None:
    typist = Typist()
    typist.read_until(">>> ")
    typist.type("Write a very long story about the sea.\n")
    typist.read_until("\n")
    typist.read_until(" ")  # the answer has begun
    typist.interrupt()
    typist.read_until(">>> ")
    typist.type("Name the capital of France.\n")
    typist.read_until("\n")
    typist.read_until(">>> ")
    assert typist.leave() == 0
