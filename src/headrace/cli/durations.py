"""Spans and moments as people type them: `30d`, `12h`, `2026-11-01`, `2026-11-01T08:00`."""

import datetime
import re

from headrace.base.errors import ConfigurationError

seconds_of_unit = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
duration_pattern = re.compile(r"([0-9]{1,9})([smhdw])")


def parse_duration_s(text: str, option: str) -> int:
    """Read a span such as `30d` as seconds; `option` is named where it is none."""
    match = duration_pattern.fullmatch(text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise ConfigurationError(
            f"{option}: {text!r} is not a span of time; write for example 45s, 30m, 12h, 30d or 2w"
        )
    return int(match[1]) * seconds_of_unit[match[2]]


def parse_moment(text: str, now_s: float, option: str) -> datetime.datetime:
    """Read a moment: a date or time (UTC unless it says otherwise), or a span before now.

    Days and weeks count from midnight UTC, as bills do: sums over whole days are also the cheap
    ones."""
    if duration_pattern.fullmatch(text.strip().lower()):
        seconds = now_s - parse_duration_s(text, option)
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        if text.strip().lower()[-1] in "dw":
            return moment.replace(hour=0, minute=0, second=0, microsecond=0)
        return moment
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{option}: {text!r} is not a moment; write for example 2026-11-01, "
            "2026-11-01T08:00+01:00, or 7d for seven days ago"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
