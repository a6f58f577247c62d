"""Small files of fields that people write: YAML or JSON, bounded, explained when wrong."""

from pathlib import Path

import msgspec
import yaml

from headrace.base.errors import ConfigurationError

file_bytes_max = 4 << 20


def read_fields(file: Path) -> dict[str, object]:
    """The fields of a file; ConfigurationError says what is wrong with it."""
    try:
        if file.stat().st_size > file_bytes_max:
            raise ConfigurationError(f"{file} is over {file_bytes_max:,} bytes")
        content = parse(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{file} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"{file} is not YAML or JSON: {reason}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} has no fields; the command's --help names them")
    return content


def parse(text: bytes) -> object:
    """JSON, which is read quickly, or else YAML."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return yaml.load(text.decode(), Loader=TextDates)  # noqa: S506 - a safe loader


class TextDates(yaml.SafeLoader):
    """YAML's safe loader, that leaves moments as they were written."""


TextDates.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
