"""Secrets that an operator keeps elsewhere, named and never stored: `env:NAME` or `file:/path`.

What the platform stores, shows, exports and backs up is the reference. Whoever needs the secret
reads it where it runs. Only variables that are named like keys of other services can be read, and
only files of directories that are made for secrets, so that a reference reaches nothing else of a
process, such as the password of its database.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from headrace.base.errors import InvalidRequest

secret_bytes_max = 16 * 1024
secret_directories = (Path("/run/secrets"), Path("/var/run/secrets"), Path("/etc/headrace/secrets"))
variable_pattern = re.compile(r"(?!HEADRACE_)[A-Z][A-Z0-9_]{0,98}(KEY|TOKEN)(_[A-Z0-9_]{1,98})?")

how_to = (
    "give env:NAME, a variable whose name says KEY or TOKEN, or file:/path in one of "
    + ", ".join(map(str, secret_directories))
)


def check_reference(reference: str, param: str) -> None:
    """InvalidRequest if this is no reference to a secret, or to one that may not be read."""
    kind, _, rest = reference.partition(":")
    if kind == "env" and variable_pattern.fullmatch(rest):
        return
    if kind == "file" and is_secret_path(Path(rest)):
        return
    raise InvalidRequest(f"{param}: {how_to}; the key itself is never stored", param=param)


def is_secret_path(path: Path) -> bool:
    """Whether a file lies in a directory for secrets, wherever links lead."""
    resolved = path.resolve() if path.is_absolute() else None
    if resolved is None:
        return False
    roots = (*secret_directories, *(root.resolve() for root in secret_directories))
    return any(resolved.is_relative_to(root) for root in roots)


def read_secret(reference: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The secret without the space around it; None where this process does not have it."""
    kind, _, rest = reference.partition(":")
    if kind == "env" and variable_pattern.fullmatch(rest):
        return environment.get(rest, "").strip() or None
    if kind == "file" and is_secret_path(Path(rest)):
        try:
            with Path(rest).open(encoding="utf-8") as file:
                return file.read(secret_bytes_max).strip() or None
        except (OSError, UnicodeDecodeError):
            return None
    return None
