"""How far quantized models' next-token distributions are from their source's, on a text.

The compiled runner reads the same tokens with all; the divergence is Kullback and Leibler's, of the
source's distribution from the other's, in nats, averaged over the positions.
"""

import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ConfigurationError, SetupError
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.scored_text import divergence, log_softmax, text_logits
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.model_file import open_model

tokens_max = 256
rows = 32  # of one step
plot_inches = (7, 4.5)
plot_endings = (".png", ".svg")


@dataclass(frozen=True, slots=True)
class TypeReport:
    """What a type costs."""

    type: str
    size_bytes: int
    kl_nats: float  # mean over the positions
    kl_nats_max: float
    same_top_share: float  # of positions where both take the same likeliest token


@dataclass(frozen=True, slots=True)
class Report:
    """What several types cost, on one text."""

    source: str
    tokens: int
    types: list[TypeReport]


def compare(source: Path, made: Sequence[tuple[str, Path]], text: str) -> Report:
    """Compare files, by the names of their types, with their source on a text's beginning.

    ConfigurationError for an empty text."""
    tokens = _tokens(source, text)
    expected = [logits.copy() for logits in _logits(source, tokens)]
    found = [_compare_one(kind, path, expected, tokens) for kind, path in made]
    return Report(source.name, len(expected), found)


def write_report(report: Report, path: Path) -> list[Path]:
    """Write it as JSON, and as plots beside it where matplotlib is installed; what was written.

    SetupError if the disk refuses."""
    plots: list[Path] = []
    try:
        path.write_text(json.dumps(asdict(report), indent=2) + "\n")
        if importlib.util.find_spec("matplotlib") is not None:
            plots = [path.with_suffix(ending) for ending in plot_endings]
            _plot(report, plots)
    except OSError as error:
        raise SetupError(
            f"{path}: cannot be written ({error.strerror}); check the directory and its free space."
        ) from error
    return [path, *plots]


def _compare_one(
    kind: str, path: Path, expected: Sequence[NDArray[np.float32]], tokens: Sequence[int]
) -> TypeReport:
    divergences: list[float] = []
    same = 0
    for before, after in zip(expected, _logits(path, tokens), strict=True):
        divergences.append(divergence(log_softmax(before), log_softmax(after)))
        same += int(before.argmax() == after.argmax())
    return TypeReport(
        type=kind,
        size_bytes=path.stat().st_size,
        kl_nats=float(np.mean(divergences)),
        kl_nats_max=float(np.max(divergences)),
        same_top_share=same / len(divergences),
    )


def _tokens(source: Path, text: str) -> list[int]:
    with open_model(source) as file:
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
    tokens = tokenizer.encode(text, add_special=True)[:tokens_max]
    if not tokens:
        raise ConfigurationError("The text is empty; give a few hundred words.")
    return tokens


def _logits(path: Path, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """The logits of what follows each token."""
    with open_model(path) as file:
        spec = read_architecture(file)
        runner = CpuRunner(file, spec, kv_tokens=2 * tokens_max, rows_max=rows, sequences_max=rows)
    with runner:
        yield from text_logits(runner, tokens)


def _plot(report: Report, paths: Sequence[Path]) -> None:
    """Divergence over size, a point a type; both axes logarithmic."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- an extra, where a plot is wanted

    figure = Figure(figsize=plot_inches, layout="constrained")
    axes = figure.add_subplot()
    for entry in report.types:
        size, nats = entry.size_bytes / 1e6, max(entry.kl_nats, 1e-9)
        axes.plot(size, nats, "o", color="tab:blue")
        axes.annotate(
            entry.type, (size, nats), textcoords="offset points", xytext=(6, 4), fontsize=9
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="file size (MB)",
        ylabel="KL divergence from the source (nats)",
        title=f"{report.source}, {report.tokens} tokens",
    )
    axes.grid(visible=True, which="both", alpha=0.3)
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
