"""A chat template that the operator gives in place of the model's own.

Models are published again with templates mended; who has the weights already need not fetch them
again. Prompts differ by their tokens, so cached ones of the other template are not found.
"""

from collections.abc import Mapping
from pathlib import Path

from headrace.base.errors import ConfigurationError

bytes_max = 1 << 20
template_key = "tokenizer.chat_template"


def with_template(metadata: Mapping[str, object], path: str | None) -> Mapping[str, object]:
    """A model file's metadata with this template; as it is without a path.

    ConfigurationError if the file cannot be read as text."""
    return metadata if path is None else {**metadata, template_key: read_template(Path(path))}


def read_template(path: Path) -> str:
    """The template's text; ConfigurationError says why there is none."""
    try:
        data = path.read_bytes()
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--chat-template {path} cannot be read: {error}") from None
    if len(data) > bytes_max or not text.strip():
        raise ConfigurationError(
            f"--chat-template {path} has {len(data):,} bytes; a template has some, and "
            f"{bytes_max:,} at most."
        )
    return text
