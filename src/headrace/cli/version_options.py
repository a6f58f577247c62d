"""What can be said of a model version beside where it comes from; one option group."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError
from headrace.weights.file_header import template_name


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
    chat_template: Annotated[
        Path | None,
        typer.Option(
            help="How it writes conversations, for engines that take a prompt alone (Triton's "
            "generate extension): a tokenizer_config.json, or a Jinja file."
        ),
    ] = None


def version_body(source: str, options: VersionOptions) -> dict[str, object]:
    """A version as the API takes it."""
    template = options.chat_template
    return {
        "source": source,
        "sha256": options.sha256,
        "context_length": options.context_length,
        "licence": options.licence,
        "format": options.format,
        "quantization": options.quantization,
        "parameters": options.parameters,
        "capabilities": options.capability,
        "chat_format": None if template is None else chat_format(template),
    }


def chat_format(path: Path) -> dict[str, str]:
    """A chat template and its end token; ConfigurationError if there is none in the file."""
    try:
        text = path.expanduser().read_text()
        if path.suffix != ".json":
            return {"template": text}
        settings = json.loads(text)
        beside = path.expanduser().with_name(template_name)
        template = beside.read_text() if beside.is_file() else template_of(settings)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--chat-template {path}: it cannot be read ({error}).") from None
    if not template:
        raise ConfigurationError(
            f"--chat-template {path}: there is no chat_template in it, and no {template_name} "
            "beside it."
        )
    end = settings.get("eos_token")
    end = end.get("content") if isinstance(end, dict) else end
    return {"template": template, "end_token": end if isinstance(end, str) else ""}


def template_of(settings: object) -> str:
    """The chat template in a tokenizer_config.json, of several the one by default; empty: none."""
    found = settings.get("chat_template") if isinstance(settings, dict) else None
    if isinstance(found, list):
        found = {each.get("name"): each.get("template") for each in found}.get("default")
    return found if isinstance(found, str) else ""


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
