"""What one limiter keeps, forgets, refuses and says."""

import pytest

from headrace.base.errors import PaymentRequired, RateLimited
from headrace.ledger.history import PastUse
from headrace.ledger.limits import Limiter
from headrace.ledger.scopes import Need, ScopeLimits, scope_ids
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
