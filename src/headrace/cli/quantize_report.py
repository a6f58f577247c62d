"""How far a quantized model's next-token distributions are from its source's, on a text.

The compiled runner reads the same tokens with both; the divergence is Kullback and
Leibler's, of the source's distribution from the other's, in nats, averaged over the positions.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ConfigurationError
from headrace.cli.check import read_text
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.scored_text import divergence, log_softmax, text_logits
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.model_file import open_model

tokens_max = 256
rows = 32  # of one step


@dataclass(frozen=True, slots=True)
class Report:
    """What a type costs."""

    type: str
    size_bytes: int
    source: str
    tokens: int
    kl_nats: float  # mean over the positions
    kl_nats_max: float
    same_top_share: float  # of positions where both take the same likeliest token


def write_report(path: Path, source: Path, made: Path, kind: str, text_file: Path) -> Report:
    """Compare on the text's beginning and write JSON; ConfigurationError for an empty text."""
    tokens = _tokens(source, text_file)
    divergences: list[float] = []
    same = 0
    for before, after in zip(_logprobs(source, tokens), _logprobs(made, tokens), strict=True):
        divergences.append(divergence(before, after))
        same += int(before.argmax() == after.argmax())
    report = Report(
        type=kind,
        size_bytes=made.stat().st_size,
        source=source.name,
        tokens=len(divergences),
        kl_nats=float(np.mean(divergences)),
        kl_nats_max=float(np.max(divergences)),
        same_top_share=same / len(divergences),
    )
    path.write_text(json.dumps(asdict(report), indent=2) + "\n")
    return report


def _tokens(source: Path, text_file: Path) -> list[int]:
    with open_model(source) as file:
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
    tokens = tokenizer.encode(read_text(text_file), add_special=True)[:tokens_max]
    if not tokens:
        raise ConfigurationError(f"{text_file} has no text; give a few hundred words.")
    return tokens


def _logprobs(path: Path, tokens: list[int]) -> Iterator[NDArray[np.float64]]:
    """The log-probabilities of what follows each token."""
    with open_model(path) as file:
        spec = read_architecture(file)
        runner = CpuRunner(file, spec, kv_tokens=2 * tokens_max, rows_max=rows, sequences_max=rows)
    with runner:
        for logits in text_logits(runner, tokens):
            yield log_softmax(logits)
