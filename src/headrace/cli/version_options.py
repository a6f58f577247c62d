"""What can be said of a model version beside where it comes from; one option group."""

from dataclasses import dataclass
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class VersionOptions:
    """Its digest, its limits, and what people search for."""

    sha256: Annotated[str | None, typer.Option(help="The digest of the file.")] = None
    context_length: Annotated[
        int | None, typer.Option(help="A context shorter than the file's own, in tokens.")
    ] = None
    licence: Annotated[str | None, typer.Option(help="SPDX, as in Apache-2.0.")] = None
    format: Annotated[str | None, typer.Option(help="As in gguf, safetensors.")] = None
    quantization: Annotated[str | None, typer.Option(help="As in Q4_K_M, fp8.")] = None
    parameters: Annotated[int | None, typer.Option(help="How many it has.")] = None
    capability: Annotated[
        list[str] | None,
        typer.Option(
            help="As in chat, tools, vision; of a model that writes no text embeddings, rerank, "
            "transcription, speech, images. Repeatable."
        ),
    ] = None


def version_body(source: str, options: VersionOptions) -> dict[str, object]:
    """A version as the API takes it."""
    return {
        "source": source,
        "sha256": options.sha256,
        "context_length": options.context_length,
        "licence": options.licence,
        "format": options.format,
        "quantization": options.quantization,
        "parameters": options.parameters,
        "capabilities": options.capability,
    }


def targets_body(targets: list[str] | None) -> dict[str, int] | None:
    """Shares from `v1=90`; ConfigurationError if one is not such."""
    if not targets:
        return None
    shares: dict[str, int] = {}
    for text in targets:
        name, _, weight = text.partition("=")
        if not name or not weight.isdecimal():
            raise ConfigurationError(f"--target {text!r}: write VERSION=WEIGHT, as in v1=90")
        shares[name] = int(weight)
    return shares
