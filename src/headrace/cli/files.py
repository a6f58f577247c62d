"""Small files of fields that people write: YAML or JSON, bounded, explained when wrong."""

from pathlib import Path

import yaml

from headrace.base.errors import ConfigurationError

file_bytes_max = 1 << 20


def read_fields(file: Path) -> dict[str, object]:
    """The fields of a file; ConfigurationError says what is wrong with it."""
    try:
        if file.stat().st_size > file_bytes_max:
            raise ConfigurationError(f"{file} is over {file_bytes_max:,} bytes")
        content = yaml.load(file.read_text(), Loader=TextDates)  # noqa: S506 - a safe loader
    except OSError as error:
        raise ConfigurationError(f"{file} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not YAML or JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} has no fields; the command's --help names them")
    return content


class TextDates(yaml.SafeLoader):
    """YAML's safe loader, that leaves moments as they were written."""


TextDates.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
