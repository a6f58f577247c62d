"""What a model's file says of itself, and which bytes it is: for the registry.

Only the header is read. A file that headrace's own engine cannot read has a digest and a format,
and other engines may run it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.base.errors import ModelFileError
from headrace.spec.models import FileHeader, VersionFile
from headrace.weights.file_header import header_at, header_of, template_key
from headrace.weights.model_file import open_model
from headrace.weights.sources import ResolvedModel

licence_characters_max = 100  # of a name; a file may have anything there


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a file that is here; empty: it does not say."""

    sha256: str
    header: FileHeader
    licence: str = ""
    chat_template_sha256: str = ""  # of the template's text; empty: it has none
    files: tuple[VersionFile, ...] = ()


def facts_of(resolved: ResolvedModel) -> FileFacts:
    """The facts of a model that is here."""
    try:
        with open_model(resolved.path) as file:
            licence = file.metadata.get("general.license", "")
            return FileFacts(
                resolved.sha256,
                header_of(file),
                licence=licence[:licence_characters_max] if isinstance(licence, str) else "",
                chat_template_sha256=template_digest(file.metadata),
                files=files_of(resolved),
            )
    except (ModelFileError, OSError):
        header = header_at(resolved.path)
        return FileFacts(resolved.sha256, header, files=files_of(resolved))


def files_of(resolved: ResolvedModel) -> tuple[VersionFile, ...]:
    """What the model is made of; a file of the cache goes by the model's name."""
    path = resolved.path
    if resolved.files or not path.is_file():
        return resolved.files
    name = resolved.name if path.name == resolved.sha256 else path.name
    return (VersionFile(name, resolved.sha256, path.stat().st_size),)


def template_digest(metadata: Mapping[str, object]) -> str:
    """Which chat template it is; empty without one."""
    text = metadata.get(template_key)
    return hashlib.sha256(text.encode()).hexdigest() if isinstance(text, str) else ""
