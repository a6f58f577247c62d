"""`headrace keys`: what clients present."""

from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError
from headrace.cli import output
from headrace.cli.admin_client import path_of
from headrace.cli.durations import parse_duration_s
from headrace.cli.limit_options import (
    LimitOptions,
    LimitsView,
    ModelLimits,
    NoLimits,
    limit_fields,
    limits_change,
    model_limits_body,
)
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import changes, comma_list, format_moment
from headrace.spec.api_key_format import parse_key

keep_note = "Keep the key now: it can't be shown again."

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="Its name or id; of its text only the id is sent.")
]
Models = Annotated[
    str | None, typer.Option(help="The models it may use, comma-separated; default: all.")
]
Endpoints = Annotated[
    str | None,
    typer.Option(help="The endpoints it may call, as chat,embeddings; default: all."),
]
Networks = Annotated[
    str | None,
    typer.Option("--allow-ip", help="Where it works, as 203.0.113.0/24,2001:db8::/32."),
]
ExpiresIn = Annotated[
    str | None, typer.Option(help="How long it works, as 12h or 30d; default: for ever.")
]


class KeyView(msgspec.Struct, frozen=True):
    """What is shown of a key."""

    id: str
    name: str
    project: str
    tenant: str
    state: str
    models: list[str] | None
    create_time: str
    expire_time: str | None
    endpoints: list[str] | None = None
    allowed_networks: list[str] | None = None
    limits: LimitsView | None = None
    model_limits: dict[str, LimitsView] | None = None
    successor_id: str | None = None
    key: str | None = None  # in the answer that made it alone


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group(
        "keys", "What clients present: create, list, show, update, rotate, revoke.", app
    )
    for command in (create, show, update, rotate, revoke):
        platform_command(group, command.__name__)(command)
    platform_command(group, "list")(list_all)


def create(
    platform: Platform,
    *,
    project: Annotated[str, typer.Option(help="Its project: name, tenant/name or id.")],
    name: Annotated[str | None, typer.Option(help="A name of your own.")] = None,
    models: Models = None,
    endpoints: Endpoints = None,
    allow_ip: Networks = None,
    expires_in: ExpiresIn = None,
    limits: LimitOptions,
    model_limit: ModelLimits = None,
) -> None:
    """Create a key, and show it this once."""
    body = {
        "project": project,
        "name": name,
        "models": comma_list(models),
        "endpoints": comma_list(endpoints),
        "allowed_networks": comma_list(allow_ip),
        "expires_in_s": _lifetime_s(expires_in),
        "limits": limits.body(),
        "model_limits": model_limits_body(model_limit),
    }
    _show_new(platform, platform.client.send("POST", "/keys", body))


def list_all(
    platform: Platform,
    *,
    project: Annotated[str | None, typer.Option(help="Only this project's.")] = None,
) -> None:
    """List keys, without their secrets."""
    platform.show_list(
        platform.client.list("/keys", {"project": project}),
        KeyView,
        ("NAME", "ID", "PROJECT", "STATE", "MODELS", "EXPIRES"),
        lambda key: (
            key.name,
            key.id,
            f"{key.tenant}/{key.project}",
            key.state,
            _names(key.models),
            format_moment(key.expire_time),
        ),
        empty="no keys yet; create one with `headrace keys create --project PROJECT`",
    )


def show(platform: Platform, key: KeyArgument) -> None:
    """Show one key, without its secret."""
    platform.show(platform.client.get(_path(key)), KeyView, _fields)


def update(
    platform: Platform,
    key: KeyArgument,
    *,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    models: Models = None,
    endpoints: Endpoints = None,
    allow_ip: Networks = None,
    expires_in: ExpiresIn = None,
    unbound: Annotated[
        str | None,
        typer.Option(help="What to take away: models, endpoints, allow-ip, expiry, model-limits."),
    ] = None,
    no_limits: NoLimits = False,
    limits: LimitOptions,
    model_limit: ModelLimits = None,
) -> None:
    """Change a key: what is given; limits that are given replace all of its limits."""
    body = changes(
        {
            "name": name,
            "models": comma_list(models),
            "endpoints": comma_list(endpoints),
            "allowed_networks": comma_list(allow_ip),
            "expires_in_s": _lifetime_s(expires_in),
            "model_limits": model_limits_body(model_limit),
            **limits_change(limits, no_limits),
            "unbound": unbound,
        }
    )
    taken = _taken_away(comma_list(unbound) or [])
    body.pop("unbound", None)
    answer = platform.client.send("PATCH", _path(key), {**body, **taken}, keep_null=True)
    platform.show(answer, KeyView, _fields)


def rotate(
    platform: Platform,
    key: KeyArgument,
    *,
    overlap: Annotated[
        str, typer.Option(help="How long the old key goes on working, as 1h; 0s: not at all.")
    ] = "1h",
) -> None:
    """Make a new key in place of this one, and show it this once."""
    is_none = overlap.strip().lower() in ("0", "0s")
    body = {"overlap_s": 0 if is_none else parse_duration_s(overlap, "--overlap")}
    _show_new(platform, platform.client.send("POST", f"{_path(key)}/rotate", body))


def revoke(platform: Platform, key: KeyArgument) -> None:
    """Revoke a key, for good."""
    platform.show(platform.client.send("POST", f"{_path(key)}/revoke"), KeyView, _fields)


unbound_fields = {
    "models": "models",
    "endpoints": "endpoints",
    "allow-ip": "allowed_networks",
    "expiry": "expires_in_s",
    "model-limits": "model_limits",
}


def _taken_away(names: list[str]) -> dict[str, object]:
    unknown = [name for name in names if name not in unbound_fields]
    if unknown:
        raise ConfigurationError(
            f"--unbound: {unknown[0]!r} is none of {', '.join(unbound_fields)}"
        )
    return {unbound_fields[name]: None for name in names}


def _show_new(platform: Platform, answer: bytes) -> None:
    platform.show(answer, KeyView, _fields)
    if not platform.as_json:
        output.note(keep_note)


def _lifetime_s(expires_in: str | None) -> int | None:
    return None if expires_in is None else parse_duration_s(expires_in, "--expires-in")


def _path(key: str) -> str:
    """The key's path. Of a key's whole text only the id in it leaves this process."""
    parsed = parse_key(key)
    return f"/keys/{path_of(key if parsed is None else parsed.key_id)}"


def _fields(key: KeyView) -> list[tuple[str, str]]:
    fields = [
        ("name", key.name),
        ("id", key.id),
        ("project", f"{key.tenant}/{key.project}"),
        ("state", key.state),
        ("models", _names(key.models)),
        ("endpoints", _names(key.endpoints)),
        ("from", _names(key.allowed_networks, everything="anywhere")),
        ("created", format_moment(key.create_time)),
        ("expires", format_moment(key.expire_time)),
        *limit_fields(key.limits),
    ]
    for model, limits in (key.model_limits or {}).items():
        fields += limit_fields(limits, of=model)
    if key.successor_id is not None:
        fields.append(("rotated to", key.successor_id))
    return fields if key.key is None else [*fields, ("key", key.key)]


def _names(names: list[str] | None, everything: str = "all") -> str:
    return everything if names is None else ", ".join(names)
