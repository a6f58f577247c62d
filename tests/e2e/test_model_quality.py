"""The demo model's logits on 20 prompts, against the float forward pass of the same weights.

Weights are the file's own in both; what differs is our int16 activations and half-precision KV.
The worst prompt stands at 3e-6.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.runner import StepBatch
from headrace.kernels.reference.dequantize import dequantize
from headrace.kernels.reference.transformer import forward
from headrace.sim.progress import SilentProgress
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf
from headrace.weights.sources import resolve

kl_max = 1e-4  # of each prompt

prompts = [
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time, there was a little girl who",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "The three primary colors are red, blue and",
    "In the beginning, the universe was",
    "To be, or not to be, that is the",
    "The quick brown fox jumps over the lazy",
    "Photosynthesis is the process by which plants",
    "The opposite of hot is",
    "import numpy as",
    "The first president of the United States was George",
    "A triangle has three",
    "My favourite season is summer, because the weather is",
    "The speed of light in a vacuum is about 300,000 kilometers per",
    "Thank you very",
    "The mitochondria is the powerhouse of the",
    "Two plus two equals",
    "She opened the door and saw a",
    "The Great Wall of China was built to protect against",
]


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def one_sequence(token_ids: list[int]) -> StepBatch:
    """A greedy step over one new sequence in the first blocks."""
    count = len(token_ids)
    return StepBatch(
        token_ids=np.array(token_ids, np.int32),
        row_starts=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32),
        block_ids=np.arange(8, dtype=np.int32),
        block_starts=np.array([0, 8], np.int32),
        sampled=np.zeros(1, np.int32),
        temperature=np.zeros(1, np.float32),
        top_k=np.zeros(1, np.int32),
        top_p=np.ones(1, np.float32),
        min_p=np.zeros(1, np.float32),
        seed=np.zeros(1, np.uint64),
        position=np.zeros(1, np.int64),
    )


@pytest.mark.e2e
def test_the_demo_model_keeps_the_reference_distribution() -> None:
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace"
    cache = Path(os.environ.get("HEADRACE_CACHE_DIR", default))
    model = resolve("smollm2-135m-instruct", cache, SilentProgress())
    with open_gguf(model.path) as file:
        spec = read_architecture(file)
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
        values = {
            name: dequantize(int(tensor.type), np.array(tensor.data), tensor.shape)
            for name, tensor in file.tensors.items()
        }
        runner = CpuRunner(file, spec, kv_tokens=128, rows_max=64, sequences_max=1)
    with runner:
        for prompt in prompts:
            token_ids = tokenizer.encode(prompt)
            expected = log_softmax(forward(spec, values, token_ids)[-1])
            _, logits = runner.execute_logits(one_sequence(token_ids))
            found = log_softmax(logits[0])
            assert found.argmax() == expected.argmax(), prompt
            assert (np.exp(expected) * (expected - found)).sum() < kl_max, prompt
