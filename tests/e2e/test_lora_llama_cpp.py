"""A GGUF adapter over a real model, against llama.cpp.

llama.cpp rounds activations to 8 bits where we keep 16, which moves log-probabilities of this model
by up to a fifth; the adapter moves them by whole numbers and changes the likeliest token.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.cli.settings import default_cache_dir
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.runner import StepBatch
from headrace.sim.adapter_files import write_adapter
from headrace.sim.progress import SilentProgress
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf_writer import TensorPlan, write_gguf
from headrace.weights.lora.opening import open_adapter
from headrace.weights.model_file import open_model
from headrace.weights.sources import resolve
from headrace.weights.tensor import Tensor

xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp is the oracle")
pytestmark = pytest.mark.e2e

prompt = [504, 3575, 282, 4649, 314]  # "The capital of France is"
rank, scale = 4, 0.03
likeliest_count = 8


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve("smollm2-135m-instruct", default_cache_dir(), SilentProgress()).path


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of random numbers, in the model's own order of rows."""
    directory = tmp_path_factory.mktemp("lora")
    with open_model(model) as file:
        spec = read_architecture(file)
    made = open_adapter(write_adapter(directory / "peft", spec, seed=1, rank=rank), spec, rank)

    def pieces_of(tensor: Tensor) -> Callable[[], Iterator[bytes]]:
        return lambda: iter([tensor.data.tobytes()])

    plans = [
        TensorPlan(
            f"blk.{part.layer}.{part.target}.weight.lora_{half}",
            tensor.type,
            tensor.shape,
            pieces_of(tensor),
        )
        for part in made.parts
        for half, tensor in (("a", part.down), ("b", part.up))
    ]
    path = directory / "adapter.gguf"
    metadata = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": scale * rank,
    }
    write_gguf(path, metadata, plans)
    return path


def theirs(model: Path, adapter: Path | None) -> dict[int, float]:
    """llama.cpp's likeliest tokens after the prompt, with their log-probabilities."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 256, 1, 2
    params.warmup = False
    if adapter is not None:
        loaded = xllamacpp.CommonAdapterLoraInfo()
        loaded.path, loaded.scale = str(adapter), 1.0
        params.lora_adapters = [loaded]
    server = xllamacpp.Server(params)
    asked = {"prompt": prompt, "n_predict": 1, "n_probs": likeliest_count, "cache_prompt": False}
    answer = server.handle_completions(asked)
    (place,) = answer["choices"][0]["logprobs"]["content"]
    return {each["id"]: each["logprob"] for each in place["top_logprobs"]}


def ours(model: Path, adapter: Path | None) -> list[float]:
    """Our log-probability of every token after the prompt."""
    count = len(prompt)
    slots = None if adapter is None else np.zeros(1, np.int32)
    batch = StepBatch(
        token_ids=np.array(prompt, np.int32),
        row_starts=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32),
        block_ids=np.zeros(1, np.int32),
        block_starts=np.array([0, 1], np.int32),
        sampled=np.zeros(1, np.int32),
        temperature=np.zeros(1, np.float32),
        top_k=np.zeros(1, np.int32),
        top_p=np.ones(1, np.float32),
        min_p=np.zeros(1, np.float32),
        seed=np.zeros(1, np.uint64),
        position=np.zeros(1, np.int64),
        adapters=slots,
    )
    with open_model(model) as file:
        spec = read_architecture(file)
        with CpuRunner(
            file, spec, kv_tokens=64, rows_max=16, sequences_max=2, threads=2, adapters_max=1
        ) as runner:
            if adapter is not None:
                runner.load_adapter(0, open_adapter(adapter, spec, rank))
            _, (logits,) = runner.execute_logits(batch)
    values = logits.astype(np.float64) - logits.max()
    logprobs: list[float] = (values - np.log(np.exp(values).sum())).tolist()
    return logprobs


def test_an_adapter_says_what_it_says_in_llama_cpp(model: Path, adapter: Path) -> None:
    plain, adapted = theirs(model, None), theirs(model, adapter)
    assert max(plain, key=plain.__getitem__) != max(adapted, key=adapted.__getitem__)
    for expected, found in ((plain, ours(model, None)), (adapted, ours(model, adapter))):
        for token_id, logprob in expected.items():
            assert found[token_id] == pytest.approx(logprob, abs=0.3)
        assert int(np.argmax(found)) == max(expected, key=expected.__getitem__)
