"""`headrace quantize IN OUT --type T`: a model's weights in another type, as a GGUF file."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError
from headrace.cli.model_files import ProgressBar, resolve_model
from headrace.cli.output import format_bytes, note
from headrace.cli.settings import CacheDir
from headrace.weights.model_file import open_model
from headrace.weights.quantize import quantize_model
from headrace.weights.tensor import TensorType


class TypeName(StrEnum):
    """What weights may become."""

    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_K = "q4_k"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quantize", help="Write a model's weights in another type, as GGUF.")(run)


def run(
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="A GGUF file, a safetensors directory, or any model reference."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The GGUF file to write.")],
    kind: Annotated[
        TypeName, typer.Option("--type", case_sensitive=False, help="The weights' type.")
    ],
    cache_dir: CacheDir,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
) -> None:
    """Write a model's weights in another type, as GGUF."""
    if out.exists() and not force:
        raise ConfigurationError(f"{out} is there already; pass --force to replace it.")
    resolved = resolve_model(model, cache_dir)
    progress = ProgressBar()
    with open_model(resolved.path) as file:
        before = sum(len(tensor.data) for tensor in file.tensors.values())
        quantize_model(file, out, TensorType[kind.name], progress)
    note(f"{out}: {format_bytes(out.stat().st_size)}, from {format_bytes(before)} of weights.")
