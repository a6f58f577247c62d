"""The operator's listener of a real server: adapters while requests run, sleep, and the end."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest

from headrace.cli.settings import default_cache_dir
from headrace.sim.adapter_files import write_adapter
from headrace.sim.progress import SilentProgress
from headrace.sim.serve_process import ServeProcess
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.model_file import open_model
from headrace.weights.sources import resolve

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
key = "an-operators-key"


@pytest.fixture(scope="module")
def served() -> Iterator[ServeProcess]:
    environment = {"HEADRACE_OPERATOR_KEY": key}
    options = ("--admin-port", "0", "--max-loras", "2")
    with ServeProcess.start(model, *options, environment=environment) as process:
        yield process


@pytest.fixture(scope="module")
def operator(served: ServeProcess) -> Iterator[httpx2.Client]:
    told = re.search(r"operator is listened to at (\S+)", "\n".join(served.output))
    assert told is not None
    headers = {"Authorization": f"Bearer {key}"}
    with httpx2.Client(base_url=told[1], headers=headers, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client(served: ServeProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, name: str) -> str:
    answer = client.completions.create(
        model=name, prompt="The capital of France is", max_tokens=6, temperature=0
    )
    return answer.choices[0].text


def engine_of(served: ServeProcess) -> psutil.Process:
    (engine,) = psutil.Process(served.process.pid).children()
    return engine


def test_an_adapter_comes_and_goes_while_requests_run(
    operator: httpx2.Client, client: openai.OpenAI, tmp_path: Path
) -> None:
    file = resolve(model, default_cache_dir(), SilentProgress()).path
    with open_model(file) as opened:
        spec = read_architecture(opened)
    wanted = {"lora_name": "odd", "lora_path": str(write_adapter(tmp_path / "a", spec, seed=1))}
    story: Any = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0}
    stream = client.completions.create(model=model, stream=True, **story)
    first = next(iter(stream))
    assert operator.post("/v1/load_lora_adapter", json=wanted).status_code == 200
    assert "Paris" not in ask(client, f"{model}:odd")
    assert "Paris" in ask(client, model)
    assert operator.post("/v1/unload_lora_adapter", json={"lora_name": "odd"}).status_code == 200
    with pytest.raises(openai.NotFoundError):
        ask(client, f"{model}:odd")
    text = "".join(chunk.choices[0].text for chunk in (first, *stream) if chunk.choices)
    alone = client.completions.create(model=model, **story)
    assert text == alone.choices[0].text


def test_sleep_gives_memory_back_and_waking_changes_no_answer(
    served: ServeProcess, operator: httpx2.Client, client: openai.OpenAI
) -> None:
    before = ask(client, model)
    state: Any = operator.post("/sleep?level=2").json()
    assert (state["state"], state["sleep_level"]) == ("sleeping", 2)
    assert psutil.Process(served.process.pid).children() == []
    with pytest.raises(openai.InternalServerError) as refused:
        ask(client, model)
    assert refused.value.status_code == 503
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert operator.post("/wake_up").json()["state"] == "ready"
    assert engine_of(served).is_running()
    assert ask(client, model) == before
    assert operator.post("/sleep?level=1").json()["sleep_level"] == 1
    assert operator.post("/wake_up").json()["state"] == "ready"
    assert ask(client, model) == before


def test_the_api_has_none_of_the_operators_routes(served: ServeProcess) -> None:
    for path in ("/sleep", "/pause", "/internal/pause", "/v1/load_lora_adapter", "/state"):
        assert httpx2.post(served.url + path, json={}).status_code == 404


def test_the_server_ends_with_both_listeners(served: ServeProcess) -> None:
    assert served.stop() == 0
