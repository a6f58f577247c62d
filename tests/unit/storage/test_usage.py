"""Usage: the same sums whichever way they are read."""

from collections.abc import Callable

import pytest

from headrace.base.errors import InvalidRequest
from headrace.spec.settlements import Outcome, Settlement, TokenUsage
from headrace.storage import Database
from headrace.storage.usage import UsageDimension, day_s

Make = Callable[..., Settlement]
midnight = 1_799_971_200.0  # 2027-01-15 00:00 UTC


@pytest.fixture
def booked(database: Database, settlement: Make) -> Database:
    outcomes = list(Outcome)
    database.ledger.post(
        [
            settlement(
                f"r{number}",
                tenant_id=f"ten_{number % 2}",
                key_id=f"key_{number % 3}",
                model="large" if number % 5 == 0 else "small",
                outcome=outcomes[number % 3],
                usage=TokenUsage(number, number // 2, 1),
                settle_time=midnight + number * day_s / 4,
            )
            for number in range(16)
        ]
    )
    return database


def test_sums_without_a_group_are_one_row(booked: Database) -> None:
    (row,) = booked.ledger.usage()
    assert (row.requests, row.prompt_tokens, row.completion_tokens) == (16, 120, 16)
    assert (row.finished, row.aborted, row.failed) == (6, 5, 5)
    assert row.tenant_id is row.day is None


def test_groups_come_in_order_and_add_up(booked: Database) -> None:
    rows = booked.ledger.usage(("model", "day"))
    assert [(row.model, row.day) for row in rows] == sorted((row.model, row.day) for row in rows)
    assert {row.day for row in rows} == {f"2027-01-{day}" for day in (15, 16, 17, 18)}
    assert sum(row.requests for row in rows) == 16
    assert sum(row.cached_tokens for row in rows) == sum(n // 2 for n in range(16))


@pytest.mark.parametrize("group_by", [(), ("tenant",), ("project", "key", "model", "day")])
def test_a_range_that_cuts_a_day_agrees_with_whole_days(
    booked: Database, group_by: tuple[str, ...]
) -> None:
    by_days = booked.ledger.usage(group_by, midnight, midnight + 2 * day_s)
    by_settlements = booked.ledger.usage(group_by, midnight - 1, midnight + 2 * day_s)
    assert by_days == by_settlements
    assert sum(row.requests for row in by_days) == 8


def test_a_range_includes_its_start_and_not_its_end(booked: Database) -> None:
    quarter = day_s / 4
    (row,) = booked.ledger.usage(since=midnight + quarter, until=midnight + 3 * quarter)
    assert row.requests == 2


def test_filters_keep_what_matches(booked: Database) -> None:
    (row,) = booked.ledger.usage(("tenant",), filters={"tenant": "ten_1", "model": "large"})
    assert (row.tenant_id, row.requests) == ("ten_1", 2)
    assert booked.ledger.usage(filters={"day": "2027-01-16"})[0].requests == 4


def test_nothing_used_is_no_row(booked: Database) -> None:
    assert booked.ledger.usage(filters={"tenant": "nobody"}) == []
    assert booked.ledger.usage(("day",), since=midnight + 99 * day_s) == []


def test_an_unknown_dimension_is_refused_by_name(booked: Database) -> None:
    with pytest.raises(InvalidRequest, match="'colour'; choose from tenant, project"):
        booked.ledger.usage(("colour",))


@pytest.mark.parametrize("since", [midnight, midnight + 1.0])
@pytest.mark.parametrize("named_max", [0, 500])
@pytest.mark.parametrize("group_by", [("tenant",), ("key", "model"), ("model",)])
def test_uses_are_the_usage_with_fewer_sums(
    booked: Database,
    monkeypatch: pytest.MonkeyPatch,
    since: float,
    named_max: int,
    group_by: tuple[str, ...],
) -> None:
    monkeypatch.setattr("headrace.storage.usage.named_ids_max", named_max)
    expected = {}
    for row in booked.ledger.usage(group_by, since):
        ids = tuple(getattr(row, UsageDimension.parse(name).value) for name in group_by)
        expected[ids] = (row.prompt_tokens + row.completion_tokens, row.amount_nanousd)
    assert len(expected) > 1
    assert {each.ids: each[1:] for each in booked.ledger.uses(group_by, since)} == expected
    first, *_ = expected
    named = {each.ids: each[1:] for each in booked.ledger.uses(group_by, since, {first[0]})}
    assert named == {
        ids: use for ids, use in expected.items() if ids[0] == first[0] or named_max == 0
    }
