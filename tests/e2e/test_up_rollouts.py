"""Real rollouts under load, a real scale to zero and back, and the platform's own explanations."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from headrace.cli.settings import default_cache_dir
from headrace.sim.adapter_files import write_adapter
from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess
from headrace.sim.progress import SilentProgress
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.model_file import open_model
from headrace.weights.sources import resolve

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
rollout_count = 2


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    directory = tmp_path_factory.mktemp("up")
    with PlatformProcess.start(directory, "--demo") as started:
        started.wait_active(1)
        yield started


def generations(platform: PlatformProcess) -> list[int]:
    """Of the replicas there are, and none while a rollout is under way."""
    if platform.admin("GET", f"/rollouts/{model}")["state"] != "idle":
        return []
    return [replica.generation for replica in platform.replicas()]


def roll_out(platform: PlatformProcess, threads: int) -> None:
    """Change the look of replicas, and wait until only new ones are there."""
    shown = platform.admin("PATCH", f"/deployments/{model}", threads=threads)
    wait_until(lambda: generations(platform) == [shown["generation"]])


def client_of(platform: PlatformProcess) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{platform.gateway_url}/v1", api_key=platform.api_key, max_retries=0
    )


@dataclass
class Load:
    """Requests one after the other until told to stop."""

    platform: PlatformProcess
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with client_of(self.platform) as client:
            while not self.stop.is_set():
                try:
                    client.completions.create(model=model, prompt="Once upon", max_tokens=6)
                    self.answered += 1
                except openai.APIError as error:
                    self.failures.append(str(error))


def test_rollouts_under_load_lose_no_request(platform: PlatformProcess) -> None:
    load = Load(platform)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        for number in range(rollout_count):
            roll_out(platform, threads=1 + number % 2)
    finally:
        load.stop.set()
        thread.join()
    assert load.failures == []
    assert load.answered > 2 * rollout_count
    rollout = platform.admin("GET", f"/rollouts/{model}")
    assert rollout["last_succeeded"] is True


def test_an_adapter_is_rolled_out_and_served_by_name(
    platform: PlatformProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = resolve(model, default_cache_dir(), SilentProgress()).path
    with open_model(file) as opened:
        spec = read_architecture(opened)
    adapter = write_adapter(tmp_path_factory.mktemp("lora") / "odd", spec, seed=1)
    generation = platform.replicas()[0].generation
    run("deployments", "update", model, "--lora", f"odd={adapter}", platform=platform)
    wait_until(lambda: generations(platform) == [generation + 1])
    with client_of(platform) as client:
        assert [card.id for card in client.models.list()] == [model, f"{model}:odd"]
        answers = {
            name: client.completions.create(
                model=name, prompt="The capital of France is", max_tokens=4, temperature=0
            )
            for name in (model, f"{model}:odd")
        }
    assert "Paris" in answers[model].choices[0].text
    assert "Paris" not in answers[f"{model}:odd"].choices[0].text
    assert answers[f"{model}:odd"].model == f"{model}:odd"


def test_a_request_can_be_explained(platform: PlatformProcess) -> None:
    with client_of(platform) as client:
        answer = client.completions.with_raw_response.create(
            model=model, prompt="Why here? " * 300, max_tokens=1
        )
    request_id = answer.headers["x-request-id"]
    told = run("explain", "route", request_id, platform=platform)
    (replica,) = platform.replicas()
    assert f"chosen    {replica.name} by the only one left (least-harm)" in told
    assert "queue_s" in told


def test_nothing_runs_without_requests_and_the_next_one_wakes_it(
    platform: PlatformProcess,
) -> None:
    bounds = {"min": 0, "max": 1, "idle_s": 1, "down_after_s": 0}
    platform.admin("PATCH", f"/deployments/{model}", autoscaling=bounds)
    wait_until(lambda: platform.replicas() == [])
    assert "granted" in run("explain", "scaling", model, platform=platform)
    with client_of(platform) as client:
        answer = client.completions.create(model=model, prompt="Good morning", max_tokens=3)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_what_is_exported_changes_nothing(platform: PlatformProcess, tmp_path: Path) -> None:
    file = tmp_path / "state.yaml"
    file.write_text(run("export", platform=platform))
    assert "kind: deployment" in file.read_text()
    told = run("apply", "--prune", "-f", str(file), platform=platform)
    assert told.strip() == "nothing to change"


def run(*arguments: str, platform: PlatformProcess) -> str:
    """What a command of the platform writes."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "headrace.cli.main", *arguments),
            *("--data-dir", str(platform.data_dir)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
