"""`headrace run --port`: the API, Ollama's included, beside a chat or alone; and a LoRA adapter."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ollama
import openai
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
run_command = (sys.executable, "-m", "headrace.cli.main", "run", model)
question = [{"role": "user", "content": "Name the capital of France."}]
options = {"num_predict": 8, "temperature": 0}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random numbers that change what the model says."""
    file = resolve(model, default_cache_dir(), SilentProgress()).path
    with open_model(file) as opened:
        spec = read_architecture(opened)
    return write_adapter(tmp_path_factory.mktemp("lora") / "odd", spec, seed=1)


@pytest.fixture(scope="module")
def served(adapter: Path) -> Iterator[ServeProcess]:
    """A model without a terminal: it only serves."""
    with ServeProcess.start(model, "--lora", f"odd={adapter}", command="run") as process:
        yield process


def test_ollamas_client_works_on_the_first_rung(served: ServeProcess) -> None:
    with ollama.Client(host=served.url) as client:
        whole = client.chat(model=model, messages=question, options=options)
        assert "Paris" in (whole.message.content or "")
        lines = list(client.chat(model=model, messages=question, options=options, stream=True))
        assert "".join(line.message.content or "" for line in lines) == whole.message.content
        made = client.generate(model=model, prompt="One, two,", raw=True, options=options)
        assert made.response
        assert [entry.model for entry in client.list().models] == [model, f"{model}:odd"]
        assert client.show(model).modelinfo
        adapted = client.chat(model=f"{model}:odd", messages=question, options=options)
        assert adapted.message.content != whole.message.content


def test_an_adapter_is_a_model_to_openais_client(served: ServeProcess) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        assert [card.id for card in client.models.list()] == [model, f"{model}:odd"]
        answers = {
            name: client.completions.create(model=name, prompt="x", max_tokens=8, temperature=0)
            for name in (model, f"{model}:odd")
        }
        assert answers[model].choices[0].text != answers[f"{model}:odd"].choices[0].text
        assert answers[f"{model}:odd"].model == f"{model}:odd"


def test_the_api_is_there_while_a_person_types() -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*run_command, "--temperature", "0", "--port", "0"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(slave)
    try:
        shown = ""
        while ">>> " not in shown:
            shown += os.read(master, 4096).decode(errors="replace")
        url = re.search(r"OLLAMA_HOST=(http://\S+)", shown)
        assert url is not None, shown
        with ollama.Client(host=url[1]) as client:
            assert client.chat(model=model, messages=question, options=options).eval_count
        os.write(master, b"Name the capital of France.\n")
        shown = ""
        while "Paris" not in shown:
            shown += os.read(master, 4096).decode(errors="replace")
        os.write(master, b"/bye\n")
        while process.poll() is None:
            try:
                os.read(master, 4096)
            except OSError:  # the other end is closed
                process.wait(30)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
