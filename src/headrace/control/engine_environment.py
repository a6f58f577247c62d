"""The variables that a deployment gives its engine: what they may be called, and may not carry."""

import re
from collections.abc import Mapping

from headrace.base.errors import InvalidRequest
from headrace.launchers.environment import says_secret

variables_max = 64
value_characters_max = 4096
name_pattern = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def check_environment(environment: Mapping[str, str]) -> None:
    """InvalidRequest for what is no variable, and for a name that says its value is a secret.

    A deployment's variables are stored, shown, exported and backed up."""
    if len(environment) > variables_max:
        raise InvalidRequest(f"environment: at most {variables_max} variables", param="environment")
    for name, value in environment.items():
        if not name_pattern.fullmatch(name):
            raise InvalidRequest(
                f"environment: {name[:130]!r} is no name of a variable: letters, digits and `_`",
                param="environment",
            )
        if "\0" in value or len(value) > value_characters_max:
            raise InvalidRequest(
                f"environment: {name} has a value that is too long (over {value_characters_max} "
                "characters) or has a zero byte",
                param="environment",
            )
        if says_secret(name):
            raise InvalidRequest(
                f"environment: {name} says that it is a secret, and a deployment's variables are "
                "shown and exported; have the engine read it from a file where it runs",
                param="environment",
            )
