"""`headrace quantize IN OUT --type T`: a model's weights in other types, as GGUF files."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError
from headrace.cli.check import documentation_text, read_text
from headrace.cli.model_files import ProgressBar, resolve_model
from headrace.cli.output import format_bytes, note
from headrace.cli.quantize_report import compare, write_report
from headrace.cli.settings import CacheDir
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.importance import Importance, measure_importance, read_importance
from headrace.weights.model_file import ModelFile, open_model
from headrace.weights.quantize import quantize_model
from headrace.weights.sources import ResolvedModel
from headrace.weights.tensor import TensorType

importance_tokens_min, importance_tokens_max = 32, 1024


class TypeName(StrEnum):
    """What weights may become."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q5_K = "q5_k"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_K = "q4_k"
    IQ4_NL = "iq4_nl"
    IQ4_XS = "iq4_xs"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"
    MXFP4 = "mxfp4"
    Q3_K = "q3_k"
    Q2_K = "q2_k"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quantize", help="Write a model's weights in other types, as GGUF.")(run)


def run(
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="A GGUF file, a safetensors directory, or any model reference."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="The GGUF file to write; of several types, the directory."
        ),
    ],
    kinds: Annotated[
        list[TypeName],
        typer.Option("--type", case_sensitive=False, help="The weights' type; repeatable."),
    ],
    cache_dir: CacheDir,
    imatrix: Annotated[
        Path | None,
        typer.Option(
            help="What matters: a text that the model reads first, or an importance matrix of "
            "llama.cpp (GGUF, or .dat)."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write size and divergence from IN here, as JSON, with plots beside it."),
    ] = None,
    report_text: Annotated[
        Path | None,
        typer.Option(
            help="The text whose beginning the report compares on; default: Python's own "
            "documentation."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
) -> None:
    """Write a model's weights in other types, as GGUF."""
    resolved = resolve_model(model, cache_dir)
    targets = _targets(out, kinds, resolved, force=force)
    text = "" if report is None else _report_text(report, report_text)
    progress = ProgressBar()
    with open_model(resolved.path) as file:
        for line in file.notes:
            note(line)
        importance = None if imatrix is None else _importance(imatrix, file, progress)
        before = sum(tensor.byte_count for tensor in file.tensors.values())
        for kind, path in targets:
            target = TensorType[kind.name]
            quantize_model(file, path, target, progress, importance, name=resolved.name)
            note(f"{path}: {format_bytes(path.stat().st_size)}, from {format_bytes(before)}.")
    if report is not None:
        _report(resolved.path, targets, text, report)


def _targets(
    out: Path, kinds: Sequence[TypeName], source: ResolvedModel, *, force: bool
) -> list[tuple[TypeName, Path]]:
    """Where each type goes; ConfigurationError if something is there already.

    What is no plain file, a device or a directory, is never replaced, nor is what is read."""
    distinct = list(dict.fromkeys(kinds))
    if len(distinct) == 1:
        targets = [(distinct[0], out)]
    else:
        if out.exists() and not out.is_dir():
            raise ConfigurationError(f"{out} is no directory, and several types need one.")
        out.mkdir(parents=True, exist_ok=True)
        targets = [(kind, out / f"{source.name}.{kind.name}.gguf") for kind in distinct]
    for _, path in targets:
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"{path} is no plain file; name a file to write.")
        if path.exists() and path.samefile(source.path):
            raise ConfigurationError(f"{path} is the model that is read; name another file.")
        if path.exists() and not force:
            raise ConfigurationError(f"{path} is there already; pass --force to replace it.")
    return targets


def _importance(path: Path, file: ModelFile, progress: ProgressBar) -> Importance:
    if not path.is_file():
        raise ConfigurationError(f"--imatrix {path}: there is no such file.")
    found = read_importance(path)
    if found is not None:
        return found
    tokens = Tokenizer.from_gguf_metadata(file.metadata).encode(read_text(path), add_special=True)
    if len(tokens) < importance_tokens_min:
        raise ConfigurationError(
            f"--imatrix {path} has {len(tokens)} tokens, which say little of what matters; give "
            "some thousand words."
        )
    return measure_importance(
        file, read_architecture(file), tokens[:importance_tokens_max], progress
    )


def _report_text(report: Path, given: Path | None) -> str:
    """What the report compares on; ConfigurationError if there can be no report."""
    if report.is_dir() or not report.parent.is_dir():
        raise ConfigurationError(
            f"--report {report}: name a file to write, in a directory that is there."
        )
    return documentation_text() if given is None else read_text(given)


def _report(source: Path, targets: Sequence[tuple[TypeName, Path]], text: str, path: Path) -> None:
    found = compare(source, [(kind.value, made) for kind, made in targets], text)
    for entry in found.types:
        note(
            f"{entry.type}: {format_bytes(entry.size_bytes)}, KL {entry.kl_nats:.5f} nats over "
            f"{found.tokens} tokens, the same first choice at {entry.same_top_share:.1%}."
        )
    for written in write_report(found, path):
        note(f"{written} written.")
