"""What one limiter keeps, forgets, refuses and says."""

import math
from datetime import UTC, datetime

import pytest

from headrace.base.errors import PaymentRequired, RateLimited
from headrace.http.asgi import error_headers
from headrace.ledger.history import PastUse
from headrace.ledger.limits import Limiter
from headrace.ledger.scopes import Need, ScopeLimits, scope_ids
from headrace.ledger.windows import Calendar
from headrace.sim.clock import ManualClock
from headrace.spec.limits import CalendarPeriod, Limits

ids = scope_ids("ten", "prj", "key", "m")
noon_s = 1_800_014_400.0  # of a day in UTC, at the start of a minute


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(noon_s)


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock)


def test_the_use_of_a_day_before_a_start_counts_until_the_day_ends(
    clock: ManualClock, limiter: Limiter
) -> None:
    spent = PastUse(CalendarPeriod.DAY, noon_s - 43_200, ids, 3, 10, 10, 80)
    others = [spent._replace(ids=scope_ids("t", "p", f"k{n}", "x"), nanousd=1) for n in range(40)]
    limiter.load([spent, *others])
    limits = ScopeLimits(key=Limits(budget_nanousd=100))
    with pytest.raises(PaymentRequired) as refused:
        limiter.reserve(ids, limits, Need(0, 0, 21))
    assert refused.value.fields["used"] == 80
    assert refused.value.retry_after_s == 43_200
    clock.advance(43_200)
    limiter.reserve(ids, limits, Need(0, 0, 21))


def test_of_two_limits_in_the_way_the_refusal_names_the_one_that_frees_last(
    limiter: Limiter,
) -> None:
    limits = ScopeLimits(
        tenant=Limits(tokens_per_period=10, period=CalendarPeriod.MONTH),
        key=Limits(requests_per_minute=1),
    )
    limiter.settle(limiter.reserve(ids, limits, Need(5, 5, 0)), 5, 5, 0)
    with pytest.raises(RateLimited) as refused:
        limiter.reserve(ids, limits, Need(1, 0, 0))
    assert refused.value.fields["scope"] == "tenant"
    assert refused.value.fields["limit_name"] == "tokens_per_period"


def test_a_refused_request_holds_nothing_in_any_scope(limiter: Limiter) -> None:
    limits = ScopeLimits(tenant=Limits(tokens_per_minute=10), key=Limits(concurrent_requests=0))
    for _ in range(3):
        with pytest.raises(RateLimited):
            limiter.reserve(ids, limits, Need(10, 0, 0))
    limiter.reserve(ids, limits._replace(key=None), Need(10, 0, 0))


def test_a_cancelled_request_was_never_there(limiter: Limiter) -> None:
    limits = ScopeLimits(key=Limits(requests_per_minute=1, concurrent_requests=1))
    for _ in range(3):
        limiter.cancel(limiter.reserve(ids, limits, Need(1, 1, 1)))


def test_room_made_by_the_next_settlement_is_worth_a_retry_in_a_second(limiter: Limiter) -> None:
    limits = ScopeLimits(key=Limits(tokens_per_minute=10))
    limiter.reserve(ids, limits, Need(4, 4, 0))
    with pytest.raises(RateLimited) as refused:
        limiter.reserve(ids, limits, Need(4, 0, 0))
    assert refused.value.fields["reserved"] == 8
    assert refused.value.retry_after_s == 1.0


def test_alert_only_limits_count_and_refuse_nothing(limiter: Limiter) -> None:
    limits = ScopeLimits(key=Limits(requests_per_minute=1, alert_only=True))
    for _ in range(3):
        limiter.reserve(ids, limits, Need(1, 1, 1))
    standing = limiter.standing(ids, limits)
    assert standing.requests is not None
    assert standing.requests.remaining == 0


def test_a_rolling_quota_frees_when_its_retry_after_says(
    clock: ManualClock, limiter: Limiter
) -> None:
    limits = ScopeLimits(key=Limits(tokens_per_period=10, period=640))
    limiter.settle(limiter.reserve(ids, limits, Need(5, 5, 0)), 5, 5, 0)
    with pytest.raises(RateLimited) as refused:
        limiter.reserve(ids, limits, Need(1, 0, 0))
    retry_after_s = refused.value.retry_after_s
    assert retry_after_s is not None
    assert 640 <= retry_after_s <= 650
    clock.advance(retry_after_s - 0.5)
    with pytest.raises(RateLimited):
        limiter.reserve(ids, limits, Need(1, 0, 0))
    clock.advance(0.5)
    limiter.reserve(ids, limits, Need(10, 0, 0))


def test_scopes_that_use_nothing_any_more_take_no_memory(
    clock: ManualClock, limiter: Limiter
) -> None:
    for number in range(500):
        some = scope_ids("ten", "prj", f"key{number}", "m")
        limiter.settle(limiter.reserve(some, ScopeLimits(), Need(1, 1, 1)), 1, 1, 1)
    assert limiter.scope_count() > 1_000
    clock.advance(40 * 86_400)
    for _ in range(500):
        limiter.settle(limiter.reserve(ids, ScopeLimits(), Need(1, 1, 1)), 1, 1, 1)
    assert limiter.scope_count() == len(ids)


minute_limits = ScopeLimits(key=Limits(requests_per_minute=1))
budget = ScopeLimits(key=Limits(budget_nanousd=100))
rolling = ScopeLimits(key=Limits(tokens_per_period=10, period=640))


def use_up(limiter: Limiter, limits: ScopeLimits) -> None:
    """One request that uses up any of the limits above."""
    limiter.settle(limiter.reserve(ids, limits, Need(5, 5, 100)), 5, 5, 100)


def refused_for_s(limiter: Limiter, limits: ScopeLimits) -> float:
    """How long a request is told to wait; 0 if it is admitted."""
    try:
        limiter.cancel(limiter.reserve(ids, limits, Need(1, 0, 1)))
    except (RateLimited, PaymentRequired) as refused:
        return refused.retry_after_s or math.inf
    return 0.0


@pytest.mark.parametrize("limits", [minute_limits, budget, rolling])
@pytest.mark.parametrize("step_s", [-86_400.0, -7.0, 7.0, 86_400.0])
def test_a_clock_that_is_wrong_for_a_moment_changes_nothing(
    clock: ManualClock, limiter: Limiter, limits: ScopeLimits, step_s: float
) -> None:
    use_up(limiter, limits)
    before_s = refused_for_s(limiter, limits)
    clock.set_wall(step_s)
    assert refused_for_s(limiter, limits) == before_s
    clock.advance(30)
    assert refused_for_s(limiter, limits) == before_s - 30
    clock.set_wall(-step_s)
    assert refused_for_s(limiter, limits) == before_s - 30


@pytest.mark.parametrize("limits", [minute_limits, budget, rolling])
def test_a_clock_that_is_set_forward_for_good_is_followed(
    clock: ManualClock, limiter: Limiter, limits: ScopeLimits
) -> None:
    use_up(limiter, limits)
    clock.set_wall(86_400)
    assert refused_for_s(limiter, limits)
    clock.advance(60)
    assert not refused_for_s(limiter, limits)
    assert limiter.time_s() == clock.wall_s()


@pytest.mark.parametrize("limits", [minute_limits, budget, rolling])
def test_a_clock_that_is_set_back_for_good_gives_nothing_anew_and_locks_nobody_out(
    clock: ManualClock, limiter: Limiter, limits: ScopeLimits
) -> None:
    """What was used counts to the end of the period that it is by then."""
    use_up(limiter, limits)
    clock.set_wall(-3 * 86_400)
    refused_for_s(limiter, limits)
    clock.advance(60)
    use_s = refused_for_s(limiter, limits)
    assert limiter.time_s() == clock.wall_s()
    if limits is not minute_limits:  # a minute is over
        assert 0 < use_s <= 86_400
    clock.advance(use_s)
    assert not refused_for_s(limiter, limits)


def test_a_day_that_a_wrong_clock_ended_goes_on_with_what_was_used(
    clock: ManualClock, limiter: Limiter
) -> None:
    use_up(limiter, budget)
    for step_s in (86_400, -86_400):
        clock.set_wall(step_s)
        refused_for_s(limiter, budget)
        clock.advance(60)
        refused_for_s(limiter, budget)
    assert limiter.time_s() == clock.wall_s()
    assert refused_for_s(limiter, budget) == 43_200 - 120


def test_a_request_of_a_minute_that_comes_twice_counts_in_the_first(
    clock: ManualClock, limiter: Limiter
) -> None:
    limits = ScopeLimits(key=Limits(tokens_per_minute=10))
    held = limiter.reserve(ids, limits, Need(5, 5, 0))
    clock.set_wall(-180)
    refused_for_s(limiter, limits)
    clock.advance(60)
    refused_for_s(limiter, limits)
    clock.advance(120)  # the same minute as at first
    limiter.reserve(ids, limits, Need(5, 5, 0))
    limiter.settle(held, 0, 0, 0)
    assert refused_for_s(limiter, limits)


def test_small_corrections_are_followed_at_once(clock: ManualClock, limiter: Limiter) -> None:
    for _ in range(100):
        clock.set_wall(0.4)
        limiter.time_s()
    assert limiter.time_s() == pytest.approx(clock.wall_s())


def test_a_rolling_quota_that_running_requests_stand_in_the_way_of_says_a_second(
    limiter: Limiter,
) -> None:
    limiter.reserve(ids, rolling, Need(8, 0, 0))
    with pytest.raises(RateLimited, match="try again in 1 s") as refused:
        limiter.reserve(ids, rolling, Need(5, 0, 0))
    assert (refused.value.retry_after_s, refused.value.fields["reset_s"]) == (1.0, 1.0)


def test_the_message_says_as_many_seconds_as_the_header(
    clock: ManualClock, limiter: Limiter
) -> None:
    use_up(limiter, minute_limits)
    clock.advance(0.7)
    with pytest.raises(RateLimited, match="try again in 60 s") as refused:
        limiter.reserve(ids, minute_limits, Need(1, 0, 0))
    assert (b"retry-after", b"60") in error_headers(refused.value)


@pytest.mark.parametrize(
    ("now", "next_day", "next_month"),
    [
        ("2028-02-28T23:59:59", "2028-02-29", "2028-03-01"),
        ("2028-02-29T12:00:00", "2028-03-01", "2028-03-01"),
        ("2027-02-28T12:00:00", "2027-03-01", "2027-03-01"),
        ("2100-02-28T12:00:00", "2100-03-01", "2100-03-01"),  # no leap year
        ("2027-12-31T23:59:59", "2028-01-01", "2028-01-01"),
        ("2027-01-31T00:00:00", "2027-02-01", "2027-02-01"),
        ("2027-03-28T01:30:00", "2027-03-29", "2027-04-01"),  # summer time begins in Europe
    ],
)
def test_days_and_months_end_by_the_calendar_in_utc(
    now: str, next_day: str, next_month: str
) -> None:
    calendar = Calendar(seconds_of(now))
    assert calendar.day_end_s == seconds_of(next_day)
    assert calendar.month_end_s == seconds_of(next_month)
    calendar.advance(calendar.day_end_s)
    assert calendar.day_s == seconds_of(next_day)
    assert calendar.month_s == seconds_of(next_day[:8] + "01")


def seconds_of(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
