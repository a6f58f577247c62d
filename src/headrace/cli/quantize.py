"""`headrace quantize IN OUT --type T`: a model's weights in another type, as a GGUF file."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError
from headrace.cli.model_files import ProgressBar, resolve_model
from headrace.cli.output import format_bytes, note
from headrace.cli.quantize_report import write_report
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
    report: Annotated[
        Path | None, typer.Option(help="Write size and divergence from IN here, as JSON.")
    ] = None,
    report_text: Annotated[
        Path | None, typer.Option(help="The text whose beginning the report compares on.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
) -> None:
    """Write a model's weights in another type, as GGUF."""
    if report is not None and report_text is None:
        raise ConfigurationError("--report needs a text to compare on; pass --report-text FILE.")
    if out.exists() and not force:
        raise ConfigurationError(f"{out} is there already; pass --force to replace it.")
    resolved = resolve_model(model, cache_dir)
    progress = ProgressBar()
    with open_model(resolved.path) as file:
        before = sum(tensor.byte_count for tensor in file.tensors.values())
        quantize_model(file, out, TensorType[kind.name], progress)
    note(f"{out}: {format_bytes(out.stat().st_size)}, from {format_bytes(before)} of weights.")
    if report is not None and report_text is not None:
        found = write_report(report, resolved.path, out, kind.value, report_text)
        note(
            f"{report}: KL {found.kl_nats:.5f} nats over {found.tokens} tokens, the same first "
            f"choice at {found.same_top_share:.1%}."
        )
