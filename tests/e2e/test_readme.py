"""Every command in the README works: read from it, run as it stands there.

Ports and directories come from the environment or are free ones instead of the written numbers,
so that the test disturbs nobody. `make test` is what runs this test, so it is not run again.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

root = Path(__file__).parents[2]
model = "smollm2-135m-instruct"
hello = {"role": "user", "content": "Hello!"}


def commands() -> list[str]:
    """The commands of all `sh` blocks, continuation lines joined."""
    text = (root / "README.md").read_text()
    blocks: list[str] = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [re.sub(r"\s+", " ", line.strip()) for line in lines if line.strip()]


def command(start: str) -> str:
    """The one command of the README that begins so."""
    (found,) = [line for line in commands() if line.startswith(start)]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(data_dir: Path | None = None) -> dict[str, str]:
    """This environment with the tested `headrace` first on the path, and a terminal's width."""
    here = str(Path(sys.executable).parent)
    changed = {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
    if data_dir is not None:
        changed["HEADRACE_DATA_DIR"] = str(data_dir)
    return {**os.environ, **changed}


def run(line: str, variables: dict[str, str]) -> str:
    """Run one line as a shell would; what it printed."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=root,
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def running(line: str, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on, ended by Ctrl-C as its reader would."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=root,
            env=variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        except BaseException:
            log.seek(0)
            sys.stdout.write(f"{line}:\n{log.read()[-4000:]}")  # pytest shows it
            raise
        finally:
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=60) in (0, 130, -signal.SIGINT), line


def wait_for(ready: Path, process: subprocess.Popen[str]) -> dict[str, str]:
    """What `--ready-file` says once the platform answers; the test's timeout bounds this."""
    while not ready.exists():
        assert process.poll() is None, "the platform ended before it was ready"
        time.sleep(0.1)
    told: dict[str, str] = json.loads(ready.read_text())
    return told


def wait_for_port(port: int, process: subprocess.Popen[str]) -> None:
    while True:
        assert process.poll() is None, "the server ended before it was ready"
        done = subprocess.run(
            ["curl", "-sf", f"http://127.0.0.1:{port}/readyz"], capture_output=True, check=False
        )
        if done.returncode == 0:
            return
        time.sleep(0.1)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="headrace-readme-"))
    yield directory / "data"
    shutil.rmtree(directory)


def test_every_command_of_the_readme_is_run_here() -> None:
    starts = (
        *("make run", "make test", f"headrace run {model}", f"headrace serve {model}", "curl"),
        *("headrace bench serve", "headrace up --demo", "headrace keys create"),
        *("headrace replicas list", "headrace usage"),
    )
    unknown = [line for line in commands() if not line.startswith(starts)]
    assert unknown == [], "give each new command of the README a test here"
    assert len(commands()) == len(starts)


def test_run_answers_in_the_terminal() -> None:
    assert len(run(command("headrace run"), environment()).split()) > 3


def test_serve_answers_curl_and_the_load_generator() -> None:
    port = str(free_port())
    variables = environment()
    line = command("headrace serve").replace("8000", port)
    with running(line, variables) as process:
        wait_for_port(int(port), process)
        answer = json.loads(run(command("curl").replace("8000", port), variables))
        assert answer["choices"][0]["message"]["content"]
        assert answer["usage"]["completion_tokens"] > 0
        report = run(command("headrace bench serve").replace("8000", port), variables)
        assert report.strip()


def test_up_serves_two_replicas_and_answers_the_commands(data_dir: Path) -> None:
    variables = environment(data_dir)
    ready = data_dir.parent / "ready.json"
    options = f"--port {free_port()} --admin-port {free_port()} --ready-file {ready}"
    with running(f"{command('headrace up')} {options}", variables) as process:
        told = wait_for(ready, process)
        key = json.loads(run(command("headrace keys create"), variables))
        assert key["key"].startswith("hr_")
        assert model in run(command("headrace replicas list"), variables)
        ask = (
            f"curl -sf {told['gateway_url']}/v1/chat/completions -H 'Authorization: Bearer "
            f"{key['key']}' -H 'Content-Type: application/json' -d '"
            + json.dumps({"model": model, "max_tokens": 60, "messages": [hello]})
            + "'"
        )
        assert json.loads(run(ask, variables))["usage"]["completion_tokens"] > 0
        while model not in run(command("headrace usage"), variables):
            time.sleep(0.2)


def test_make_run_starts_the_platform_and_ends_with_ctrl_c(data_dir: Path) -> None:
    ready = data_dir.parent / "ready.json"
    variables = environment(data_dir) | {
        "HEADRACE_PORT": str(free_port()),
        "HEADRACE_ADMIN_PORT": str(free_port()),
        "HEADRACE_READY_FILE": str(ready),
    }
    with running(command("make run"), variables) as process:
        told = wait_for(ready, process)
        authorization = f"Authorization: Bearer {told['api_key']}"
        answer = run(f"curl -sf {told['gateway_url']}/v1/models -H '{authorization}'", variables)
        assert [entry["id"] for entry in json.loads(answer)["data"]] == [model]
