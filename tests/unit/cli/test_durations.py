"""Spans and moments as people type them."""

import datetime

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.durations import parse_duration_s, parse_moment


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("30m", 1800), ("12H", 43_200), ("30d", 2_592_000)]
)
def test_spans(text: str, seconds: int) -> None:
    assert parse_duration_s(text, "--x") == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "0d", "1.5h", "1y", "9999999999d"])
def test_what_is_no_span_names_the_option(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--expires-in"):
        parse_duration_s(text, "--expires-in")


def test_a_span_is_before_now_and_days_begin_at_midnight() -> None:
    now_s = 1_790_000_000.0  # 2026-09-21 14:13:20
    assert parse_moment("2h", now_s, "--since").timestamp() == now_s - 7200
    for text, day in (("1d", 20), ("1w", 14)):
        expected = datetime.datetime(2026, 9, day, tzinfo=datetime.UTC)
        assert parse_moment(text, now_s, "--since") == expected


def test_a_date_is_in_utc() -> None:
    expected = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
    assert parse_moment("2026-11-01", 0, "--since") == expected
    assert parse_moment("2026-11-01T01:00+01:00", 0, "--since") == expected


def test_what_is_no_moment_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a moment"):
        parse_moment("yesterday", 0, "--since")
