"""The small values that several platform commands show: money and moments of the admin API."""

import datetime
from collections.abc import Mapping

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.cli.output import format_time


class MoneyView(msgspec.Struct, frozen=True):
    """An amount; `nanousd` is exact."""

    nanousd: int
    usd: str


def format_moment(text: str | None) -> str:
    """A moment of the API as local time; a dash where there is none."""
    return format_time(None if text is None else datetime.datetime.fromisoformat(text).timestamp())


def changes(body: Mapping[str, object]) -> dict[str, object]:
    """What was given of an update; ConfigurationError if that is nothing."""
    given = {name: value for name, value in body.items() if value is not None}
    if not given:
        raise ConfigurationError("say what to change; --help lists what can be")
    return given


def comma_list(text: str | None) -> list[str] | None:
    """`a,b` as a list; None where the option was not given."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
