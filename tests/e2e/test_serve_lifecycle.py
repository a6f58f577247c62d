"""How `headrace serve` starts, survives, refuses and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from headrace.launchers import lifeline
from headrace.sim.model_on_disk import write_model_file
from headrace.sim.serve_process import ServeProcess

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
hello: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello!"}]


def engine_of(served: ServeProcess) -> int:
    """The engine process: the server's only child."""
    pid = served.process.pid
    (engine,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(engine)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def serve_fails(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run `headrace serve` where it cannot serve; what it said."""
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith("headrace: ")
    return ended.stderr


def test_a_killed_engine_comes_back_under_the_same_server() -> None:
    with (
        ServeProcess.start(model) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="-", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(
            model=model,
            messages=hello,
            max_tokens=4000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        first = engine_of(served)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="try again"):
            list(stream)
        # Sent while the engine is away: it waits for the next one and is answered.
        answer = client.chat.completions.create(model=model, messages=hello, max_tokens=5)
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0
        assert served.process.poll() is None
        assert engine_of(served) != first


def test_a_key_is_asked_for_and_kept_out_of_sight() -> None:
    key = "a-secret-key"
    with ServeProcess.start(model, environment={"HEADRACE_API_KEY": key}) as served:
        with (
            openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key=key) as client:
            assert client.models.list().data
        with urllib.request.urlopen(f"{served.url}/readyz") as answer:
            assert json.loads(answer.read())["state"] == "ready"
        assert not any(key in line for line in served.output)


def test_sigterm_lets_a_stream_end_and_then_everything_is_gone() -> None:
    served = ServeProcess.start(model)
    engine = engine_of(served)
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="-", max_retries=0) as client:
        stream = client.chat.completions.create(
            model=model,
            messages=hello,
            max_tokens=100,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        served.process.send_signal(signal.SIGTERM)
        chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert served.stop() == 0
    assert not is_alive(engine)


def test_the_engine_does_not_outlive_a_killed_server() -> None:
    with ServeProcess.start(model) as served:
        engine = engine_of(served)
        served.process.kill()
        while is_alive(engine):
            pass  # the test's own timeout bounds this


def test_server_and_engine_end_with_their_supervisors_lifeline() -> None:
    line = lifeline.create()
    with ServeProcess.start(
        model, environment=line.environment, inherited_descriptors=[line.descriptor]
    ) as served:
        engine = engine_of(served)
        line.close()
        assert served.process.wait(30) == 1
        while is_alive(engine):
            pass  # the test's own timeout bounds this


def readiness(port: int) -> str | None:
    """The state that the server reports, or None before it listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            body = answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            body = refusal.read()
    except urllib.error.URLError:
        return None
    state: str = json.loads(body)["state"]
    return state


def test_it_listens_and_reports_while_it_loads() -> None:
    port = free_port()
    command = [sys.executable, "-m", "headrace.cli.main", "serve", model, "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    states: list[str] = []
    try:
        while "ready" not in states:
            assert process.poll() is None
            state = readiness(port)
            if state is not None:
                states.append(state)
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert states[0] == "loading"
    assert set(states) == {"loading", "ready"}


def test_a_taken_port_is_refused_at_once() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in serve_fails(model, "--port", str(port))


def test_a_public_address_needs_a_key_or_a_word() -> None:
    said = serve_fails(model, "--host", "0.0.0.0", "--port", "0")
    assert "--allow-public" in said


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_a_corrupt_model_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    assert "broken.gguf" in serve_fails(str(path), "--port", "0")


def test_a_missing_model_is_refused_by_name(tmp_path: Path) -> None:
    assert "nothing-here.gguf" in serve_fails(str(tmp_path / "nothing-here.gguf"), "--port", "0")


def test_a_model_of_noise_is_warned_of_or_refused(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "noise.gguf")
    cache = {"HEADRACE_CACHE_DIR": str(tmp_path / "cache")}
    with ServeProcess.start(str(path), environment=cache) as served:
        said = "\n".join(served.output)
    assert "warning: The model is further from a plain text than guessing" in said
    assert "no chat template" in said
    for ranks in ("1", "2"):
        refused = subprocess.run(
            [
                sys.executable,
                "-m",
                "headrace.cli.main",
                "serve",
                str(path),
                "--port",
                "0",
                "-tp",
                ranks,
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **cache, "HEADRACE_LOAD_CHECKS": "refuse"},
        )
        assert refused.returncode == 1
        assert "--load-checks warn serves it all the same" in refused.stderr
        assert "Fatal Python error" not in refused.stderr


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as sock:
        port: int = sock.getsockname()[1]
        return port
