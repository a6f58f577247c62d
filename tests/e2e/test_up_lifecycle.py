"""How `headrace up` starts, refuses and ends; nothing of it may outlive it."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from headrace.adapters.headrace import HeadraceAdapter
from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess, command
from headrace.spec.deployments import Replica

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"


def client_of(platform: PlatformProcess) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{platform.gateway_url}/v1", api_key=platform.api_key, max_retries=0
    )


def say_hello(client: openai.OpenAI) -> str:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello!"}], max_tokens=8, temperature=0
    )
    return answer.choices[0].message.content or ""


def up_fails(directory: Path, *arguments: str) -> str:
    """Run `headrace up` where it cannot start; the one line that it said."""
    ended = subprocess.run(
        [*command(), "--data-dir", str(directory), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = ended.stderr.strip().splitlines()
    assert ended.returncode == 1
    assert len(lines) == 1
    assert lines[0].startswith("headrace: ")
    assert ended.stdout == ""
    return lines[0]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    """A platform that the tests below use and leave as it is."""
    with PlatformProcess.start(tmp_path_factory.mktemp("up"), "--demo") as started:
        yield started


def test_the_ready_file_is_all_that_a_client_needs(platform: PlatformProcess) -> None:
    access = json.loads(platform.ready_file.read_bytes())

    assert set(access) == {"gateway_url", "admin_url", "api_key", "admin_token"}
    assert platform.ready_file.stat().st_mode & 0o777 == 0o600
    with client_of(platform) as client:
        assert say_hello(client)
        assert [card.id for card in client.models.list()] == [model]


def test_a_streamed_answer_is_the_unstreamed_one(platform: PlatformProcess) -> None:
    with client_of(platform) as client:
        whole = say_hello(client)
        chunks = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Hello!"}],
            max_tokens=8,
            temperature=0,
            stream=True,
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


def test_secrets_are_for_the_owner_alone(platform: PlatformProcess) -> None:
    directory = platform.data_dir
    paths = (directory, *directory.rglob("*"))

    assert [path for path in paths if path.stat().st_mode & 0o077] == []
    logs = [path.read_text() for path in (directory / "logs").iterdir()]
    keys = [platform.engine_key(replica) for replica in platform.replicas()]
    for secret in (platform.api_key, platform.admin_token, *keys):
        assert not any(secret in text for text in logs)
        assert not any(secret in " ".join(process.cmdline()) for process in platform.tree())


def metrics_status(replica: Replica, key: str) -> int:
    """What an engine says to a question under this key."""
    url, headers = f"{replica.address}/metrics", HeadraceAdapter().headers(key)
    return httpx.get(url, headers=headers, timeout=60).status_code


def test_the_database_alone_opens_no_engine(platform: PlatformProcess) -> None:
    found = re.findall(rb"[0-9a-f]{32,128}", platform.stored_bytes())
    words = {word.decode() for word in found}
    for replica in platform.replicas():
        key = platform.engine_key(replica)
        assert metrics_status(replica, key) == 200
        assert replica.engine_key_salt in words, "keys would be found where this is"
        assert key not in words
        assert {metrics_status(replica, word) for word in words} == {401}


def test_a_directory_in_use_is_refused_and_its_platform_goes_on(platform: PlatformProcess) -> None:
    said = up_fails(platform.data_dir, "--port", "0", "--admin-port", "0")

    assert f"in use by process {platform.process.pid}" in said
    with client_of(platform) as client:
        assert say_hello(client)


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
def test_a_taken_port_is_one_line_before_anything_starts(tmp_path: Path, option: str) -> None:
    other = {"--port": "--admin-port", "--admin-port": "--port"}[option]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = up_fails(tmp_path, "--demo", option, str(port), other, "0")

    assert str(port) in said
    assert not list((tmp_path / "logs").iterdir())


def test_a_model_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(60))
    free = ("--port", "0", "--admin-port", "0", "--demo", "--model")

    assert "bad.gguf" in up_fails(tmp_path / "data", *free, str(bad))
    assert "missing.gguf" in up_fails(tmp_path / "data", *free, str(tmp_path / "missing.gguf"))
    assert not list((tmp_path / "data" / "logs").iterdir())


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert "--data-dir" in up_fails(tmp_path / "file" / "data")


def test_a_killed_gateway_comes_back_and_callers_wait_for_it(platform: PlatformProcess) -> None:
    killed = platform.part("gateway")
    killed.kill()

    with client_of(platform) as client:  # connects to a port that nobody accepts on yet
        assert say_hello(client)
    assert platform.part("gateway").pid != killed.pid


def test_sigterm_ends_everything_in_order(tmp_path: Path) -> None:
    with PlatformProcess.start(tmp_path, "--demo") as platform:
        # supervisor, gateway, the child that posts its journal, control, replica, its engine
        assert len(platform.tree()) == 6
        assert platform.stop() == 0
        assert platform.tree() == []
        assert platform.launches() == []
        assert not platform.ready_file.exists()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address_of(platform.gateway_url))


def test_sigterm_lets_running_requests_finish_and_a_second_one_does_not(tmp_path: Path) -> None:
    with PlatformProcess.start(tmp_path, "--demo") as platform, client_of(platform) as client:
        chunks = long_stream(client, output_tokens=300)
        next(chunks)
        platform.process.send_signal(signal.SIGTERM)
        assert [*chunks][-1].choices[0].finish_reason == "length"
        assert platform.process.wait(60) == 0

    with PlatformProcess.start(tmp_path, "--demo") as platform, client_of(platform) as client:
        chunks = long_stream(client, output_tokens=8_000)
        next(chunks)
        platform.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "topping" in platform.errors)
        platform.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError):
            list(chunks)
        assert platform.process.wait(60) == 0
        assert platform.tree() == []


def long_stream(client: openai.OpenAI, output_tokens: int) -> Iterator[ChatCompletionChunk]:
    """A stream that is as long as was asked for."""
    return iter(
        client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me a story."}],
            max_tokens=output_tokens,
            stream=True,
            extra_body={"ignore_eos": True},
        )
    )


def test_a_start_without_demo_serves_what_the_store_has_and_tells_no_old_secret(
    tmp_path: Path,
) -> None:
    with PlatformProcess.start(tmp_path, "--demo") as first, client_of(first) as client:
        say_hello(client)
        api_key, admin_token = first.api_key, first.admin_token
        first.stop()
    assert first.output.count(admin_token) == 1
    assert f"Admin token  {admin_token}\n" in first.output

    with PlatformProcess.start(tmp_path) as platform:
        wait_until(lambda: "Ctrl-C stops everything" in platform.output)  # after the ready file
        said = platform.output + platform.errors
        assert said.count(platform.admin_token) == 1
        assert not any(secret in said + first.errors for secret in (admin_token, api_key))
        headers = {"Authorization": f"Bearer {admin_token}"}
        assert httpx.get(f"{platform.admin_url}/admin/v1/keys", headers=headers).status_code == 401
        assert json.loads(platform.ready_file.read_bytes())["api_key"] is None
        platform.wait_active(1)
        platform.api_key = api_key
        with client_of(platform) as client:
            wait_until(lambda: [card.id for card in client.models.list()] == [model])
            assert say_hello(client.with_options(max_retries=5))


def test_kill_9_of_the_supervisor_ends_everything_and_the_next_start_is_clean(
    tmp_path: Path,
) -> None:
    with PlatformProcess.start(tmp_path, "--demo") as killed:
        former_key = killed.api_key
        killed.process.kill()
        killed.process.wait()
        wait_until(lambda: killed.tree() == [])

    killed.ready_file.unlink()
    with PlatformProcess.start(tmp_path, "--demo") as platform:
        assert platform.api_key != former_key
        with client_of(platform) as client:
            assert say_hello(client)
            with pytest.raises(openai.AuthenticationError):
                say_hello(client.with_options(api_key=former_key))


def test_interrupt_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    platform = PlatformProcess(tmp_path, "--demo")
    wait_until(lambda: "gateway:" in platform.errors)
    os.kill(platform.process.pid, signal.SIGINT)

    assert platform.process.wait(60) == 0
    assert platform.tree() == []
    assert not platform.ready_file.exists()


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)
