"""From what a person typed to a model file on this machine, with a bar for what takes long."""

from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from headrace.base.errors import SourceError
from headrace.cli.output import note
from headrace.weights.file_use import hold_for_life
from headrace.weights.quantized_copy import quantized_copy
from headrace.weights.sources import ResolvedModel, resolve
from headrace.weights.tensor import TensorType


class QuantizeTo(StrEnum):
    """What a model's weights may become as it is loaded."""

    Q8_0 = "q8_0"
    Q4_K = "q4_k"
    Q4_0 = "q4_0"


tries_max = 3  # to have a model that somebody removes meanwhile
line_bytes_min = 256 * 1024 * 1024  # steps below this are over before a line is read


def resolve_model(
    reference: str, cache_dir: Path, quantize: QuantizeTo | None = None
) -> ResolvedModel:
    """The model's file, fetched and verified if it is not in the cache; SourceError if it cannot.

    With `quantize` its copy in that type, made if it is not in the cache. `headrace cache prune`
    leaves it alone while this process lives. Progress goes to standard error."""
    for _ in range(tries_max):
        model = _resolved(reference, cache_dir, quantize)
        if hold_for_life(model.path):
            return model
    raise SourceError(
        f"{reference}: another process removes it from the model cache each time it is fetched; "
        "see who runs `headrace cache prune`, or point HEADRACE_CACHE_DIR at another directory."
    )


def _resolved(reference: str, cache_dir: Path, quantize: QuantizeTo | None) -> ResolvedModel:
    progress = ProgressBar()
    try:
        model = resolve(reference, cache_dir, progress)
        if quantize is None:
            return model
        return quantized_copy(model, TensorType[quantize.name], cache_dir, progress)
    finally:
        progress.finish()


class ProgressBar:
    """Draws one bar for each step on standard error; a line instead where that is no terminal."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._console = Console(stderr=True)

    def start(self, total_bytes: int | None, label: str) -> None:
        """Show a new bar; one of unknown length pulses."""
        self.finish()
        if not self._console.is_terminal:
            if total_bytes is None or total_bytes >= line_bytes_min:
                note(f"{label} ...")
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=self._console,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(label, total=total_bytes)

    def advance(self, byte_count: int) -> None:
        """Move it."""
        if self._bar is not None:
            self._bar.advance(self._task, byte_count)

    def finish(self) -> None:
        """Take it away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
