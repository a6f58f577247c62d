"""What a model's file says of itself, and which bytes it is: for the registry.

Only the header is read. A file that headrace's own engine cannot read has a digest and a format,
and other engines may run it.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import ModelFileError
from headrace.weights.model_file import open_model
from headrace.weights.sources import ResolvedModel
from headrace.weights.tensor import Tensor

licence_characters_max = 100  # of a name; a file may have anything there


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a file that is here; empty or None: it does not say."""

    sha256: str
    format: str  # gguf, safetensors
    quantization: str = ""  # of most of its weights: Q4_K, BF16, ...
    parameters: int | None = None
    licence: str = ""
    chat_template_sha256: str = ""  # of the template's text; empty: it has none


def facts_of(resolved: ResolvedModel) -> FileFacts:
    """The facts of a model that is here."""
    path = resolved.path
    plain = FileFacts(resolved.sha256, "safetensors" if path.is_dir() else "gguf")
    try:
        with open_model(path) as file:
            tensors = list(file.tensors.values())
            licence = file.metadata.get("general.license", "")
            template = template_digest(file.metadata)
    except (ModelFileError, OSError):
        return plain if has_known_format(path) else FileFacts(resolved.sha256, "")
    return FileFacts(
        resolved.sha256,
        plain.format,
        quantization=most_of(tensors),
        parameters=sum(tensor.value_count for tensor in tensors) or None,
        licence=licence[:licence_characters_max] if isinstance(licence, str) else "",
        chat_template_sha256=template,
    )


def template_digest(metadata: Mapping[str, object]) -> str:
    """Which chat template it is; empty without one."""
    text = metadata.get("tokenizer.chat_template")
    return hashlib.sha256(text.encode()).hexdigest() if isinstance(text, str) else ""


def has_known_format(path: Path) -> bool:
    """Whether a directory has safetensors, or a file begins as GGUF does."""
    if path.is_dir():
        return any(path.glob("*.safetensors"))
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def most_of(tensors: list[Tensor]) -> str:
    """The type of most of the weights; empty without any."""
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor.type.name] += tensor.value_count
    return counts.most_common(1)[0][0] if counts else ""
