"""Every setting that several commands share, declared once: name, type, unit, default, variable.

A declaration feeds the command line, the environment and the reference page. Commands take the
annotated types at the end of this module (`def up(data_dir: DataDir)`); code that has no command
line calls the `default_*` functions. Nothing else in headrace reads the environment for these.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

environment_prefix = "HEADRACE_"


def default_data_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the platform keeps its state: HEADRACE_DATA_DIR, or the XDG data home."""
    named = environment.get("HEADRACE_DATA_DIR")
    return Path(named) if named else _xdg(environment, "XDG_DATA_HOME", ".local/share")


def default_cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Where fetched model files are kept: HEADRACE_CACHE_DIR, or the XDG cache home."""
    named = environment.get("HEADRACE_CACHE_DIR")
    return Path(named) if named else _xdg(environment, "XDG_CACHE_HOME", ".cache")


def _xdg(environment: Mapping[str, str], variable: str, under_home: str) -> Path:
    """The XDG base directory's `headrace`; relative values are ignored, as the standard asks."""
    base = environment.get(variable, "")
    if base and Path(base).is_absolute():
        return Path(base) / "headrace"
    return Path.home() / under_home / "headrace"


@dataclass(frozen=True, slots=True)
class Setting:
    """One declaration of a setting."""

    name: str  # as on the command line, without the dashes
    type: type
    default: Callable[[], object] | object  # a callable is asked when the command runs
    doc: str
    unit: str = ""
    secret: bool = False  # its value is never shown
    also: tuple[str, ...] = ()  # variables that others know it by
    short: str = ""  # another name on the command line, with its dash

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it where the option is absent."""
        return environment_prefix + self.name.replace("-", "_").upper()

    def option(self) -> Any:
        """The command line option of this setting."""
        help_text = f"{self.doc} ({self.unit})" if self.unit else self.doc
        factory = self.default if callable(self.default) else None
        return typer.Option(
            self.flag,
            *([self.short] if self.short else []),
            envvar=[self.variable, *self.also],
            help=help_text,
            show_default=not self.secret and factory is None,
            default_factory=factory,
        )


data_dir = Setting(
    "data-dir",
    Path,
    default_data_dir,
    "Where the platform keeps its state; default: headrace in the XDG data home.",
)
cache_dir = Setting(
    "cache-dir",
    Path,
    default_cache_dir,
    "Where fetched model files are kept; default: headrace in the XDG cache home.",
)
admin_url = Setting(
    "admin-url", str, None, "The control plane's address; default: the one that runs on data-dir."
)
admin_token = Setting(
    "admin-token",
    str,
    None,
    "The control plane's token; default: from data-dir. Prefer the variable to the option.",
    secret=True,
)
api_key = Setting(
    "api-key",
    str,
    None,
    "The key that the server asks for. Prefer the variable to the option.",
    secret=True,
)

database_url = Setting(
    "database-url",
    str,
    None,
    "PostgreSQL, as postgresql://user:password@host/name; default: a file in data-dir. Prefer the "
    "variable to the option.",
    secret=True,
)
limits_url = Setting(
    "limits-url",
    str,
    None,
    "Redis for the limits that gateways share, as redis://host/0; default: the database, if it is "
    "PostgreSQL.",
    secret=True,
)

otlp_endpoint = Setting(
    "otlp-endpoint",
    str,
    None,
    "A collector's OTLP/HTTP address, like http://127.0.0.1:4318; default: nothing is traced.",
    also=("OTEL_EXPORTER_OTLP_ENDPOINT",),
)

all_settings = (
    data_dir, cache_dir, admin_url, admin_token, api_key, database_url, limits_url, otlp_endpoint,
)  # fmt: skip

DataDir = Annotated[Path, data_dir.option()]
CacheDir = Annotated[Path, cache_dir.option()]
AdminUrl = Annotated[str | None, admin_url.option()]
AdminToken = Annotated[str | None, admin_token.option()]
LimitsUrl = Annotated[str | None, limits_url.option()]
DatabaseUrl = Annotated[str | None, database_url.option()]
ApiKeyOption = Annotated[str | None, api_key.option()]
OtlpEndpoint = Annotated[str | None, otlp_endpoint.option()]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON of a stable shape.")]
