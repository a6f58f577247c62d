"""`headrace check MODEL`: whether a model is whole and sound, by all its numbers and a probe."""

import pydoc_data.topics
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError, ModelFileError
from headrace.cli import output
from headrace.cli.model_files import resolve_model
from headrace.cli.settings import CacheDir
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.load_probe import check_tokens, is_noise, noise_text
from headrace.engine.runner import activation_bits_default
from headrace.engine.scored_text import perplexity
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.model_file import ModelFile, open_model
from headrace.weights.soundness import check_weights

probe_tokens_max = 128
probe_rows = 32
template_key = "tokenizer.chat_template"
text_bytes_max = 1 << 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", help="Whether a model is whole and sound.")(check)


def check(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Any model reference.")],
    *,
    cache_dir: CacheDir,
    text: Annotated[
        Path | None,
        typer.Option(help="What the probe reads; default: Python's own documentation."),
    ] = None,
) -> None:
    """Read every scale and float of a model, and let it read a text; what is wrong is named."""
    resolved = resolve_model(model, cache_dir)
    with open_model(resolved.path) as file:
        spec = read_architecture(file)
        remarks = [*file.notes, *check_weights(file.tensors)]
        fields = [
            ("model", f"{resolved.name}, sha256 {resolved.sha256}"),
            ("family", f"{spec.family}, {spec.num_layers} layers of {spec.hidden_size}"),
            ("weights", f"{len(file.tensors)} tensors, every number finite"),
        ]
        if not spec.encoder:
            fields += _generation_fields(file, spec, text)
    output.write_fields(fields)
    for remark in remarks:
        output.note(remark)


def _generation_fields(
    file: ModelFile, spec: ArchitectureSpec, text: Path | None
) -> list[tuple[str, str]]:
    tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
    template = "present" if template_key in file.metadata else "absent: it completes, no chat"
    tokens = tokenizer.encode(
        documentation_text() if text is None else read_text(text), add_special=True
    )
    found = _probe(file, spec, tokens[:probe_tokens_max])
    return [
        ("tokenizer", f"{spec.vocab_size} tokens"),
        ("chat template", template),
        ("perplexity", f"{found:.1f} over {min(len(tokens), probe_tokens_max)} tokens"),
    ]


def _probe(file: ModelFile, spec: ArchitectureSpec, tokens: list[int]) -> float:
    if len(tokens) < 2:
        raise ConfigurationError("The text has less than two tokens; give a few hundred words.")
    check_tokens(tokens, spec.vocab_size)
    with CpuRunner(
        file,
        spec,
        kv_tokens=2 * probe_tokens_max,
        rows_max=probe_rows,
        sequences_max=probe_rows,
        activation_bits=activation_bits_default,
    ) as runner:
        found = perplexity(runner, tokens)
    if is_noise(found, spec.vocab_size):
        raise ModelFileError(noise_text(found, spec.vocab_size), field="weights")
    return found


def documentation_text() -> str:
    """Text that is on every machine with Python: its documentation of the language."""
    topics = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def read_text(path: Path) -> str:
    """The beginning of a text file; ConfigurationError if it cannot be read, or is none."""
    try:
        with path.open("rb") as file:
            data = file.read(text_bytes_max)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}).") from error
    if b"\0" in data:
        raise ConfigurationError(f"{path} is no text: it has zero bytes.")
    return data.decode(errors="ignore")
