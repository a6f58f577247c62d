"""Activations of 8 and of 16 bits: what `headrace serve` says; company changes no answer."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.sim.model_on_disk import write_model_file
from headrace.sim.serve_process import ServeProcess

pytestmark = pytest.mark.e2e

prompts = [
    "The sea is",
    "Count: one, two,",
    "Water flows down the",
    "A lock is",
    "Once upon a time",
]
timeout_s = 100
info_name = "headrace_engine_kernels_info"


def answer(served: ServeProcess, prompt: str) -> str:
    body = {"model": served.model, "prompt": prompt, "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request(
        served.url + "/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        text: str = json.load(response)["choices"][0]["text"]
    return text


def told_bits(served: ServeProcess) -> str:
    """The metric's labels."""
    with urllib.request.urlopen(served.url + "/metrics", timeout=timeout_s) as response:
        lines: list[str] = response.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith(info_name + "{"))
    assert line.endswith("} 1.0")
    return line


def test_a_4_bit_model_answers_with_8_bit_activations_and_says_so() -> None:
    with ServeProcess.start(
        "smollm2-135m-instruct",
        "--kv-tokens",
        "2048",
    ) as served:
        assert any("with 8-bit activations" in line for line in served.output)
        assert 'activation_bits="8"' in told_bits(served)
        alone = [answer(served, prompt) for prompt in prompts]
        assert all(text.strip() for text in alone)
        with ThreadPoolExecutor(len(prompts)) as pool:
            assert list(pool.map(lambda prompt: answer(served, prompt), prompts)) == alone


def test_a_4_bit_model_has_activations_of_16_bits_if_it_is_told_to() -> None:
    with ServeProcess.start(
        "smollm2-135m-instruct", environment={"HEADRACE_ACTIVATION_BITS": "16"}
    ) as served:
        assert not any("with 8-bit activations" in line for line in served.output)
        assert 'activation_bits="16"' in told_bits(served)
        assert answer(served, prompts[0]).strip()


def test_a_model_without_4_bit_weights_has_16(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "halves.gguf")
    with ServeProcess.start(str(path)) as served:
        assert not any("with 8-bit activations" in line for line in served.output)
        assert 'activation_bits="16"' in told_bits(served)
