"""The small values that several platform commands show: money and moments of the admin API."""

import datetime

import msgspec

from headrace.cli.output import format_time


class MoneyView(msgspec.Struct, frozen=True):
    """An amount; `nanousd` is exact."""

    nanousd: int
    usd: str


def format_moment(text: str | None) -> str:
    """A moment of the API as local time; a dash where there is none."""
    return format_time(None if text is None else datetime.datetime.fromisoformat(text).timestamp())
