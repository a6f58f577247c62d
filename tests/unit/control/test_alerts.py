"""Alerts are due at 50, 80 and 100 percent, once for each occasion."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from headrace.control.alert_watch import AlertWatch
from headrace.control.alerts import (
    LimitedScope,
    PeriodUse,
    Use,
    due_alerts,
    low_credits,
    period_start_s,
)
from headrace.sim.clock import ManualClock, SteppingClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.events import Event, EventType, Webhook
from headrace.spec.limits import CalendarPeriod, Limits
from headrace.spec.models import Model
from headrace.spec.prices import Price, PriceVersion
from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource
from headrace.spec.tenancy import ApiKey, Project, Tenant
from headrace.storage import Database

now_s = datetime(2026, 11, 29, 13, 30, tzinfo=UTC).timestamp()
day_s = datetime(2026, 11, 29, tzinfo=UTC).timestamp()
month_s = datetime(2026, 11, 1, tzinfo=UTC).timestamp()


class SlowClock(SteppingClock):
    """Whatever is timed takes a second."""

    step_s = 1.0


def percents(limits: Limits, use: Use, start_s: float = day_s) -> list[object]:
    scope = LimitedScope("key", "key_1", "ci", "ten_1", limits)
    found = due_alerts([scope], {PeriodUse("key", start_s): {"key_1": use}}, now_s)
    return [alert.data["threshold_percent"] for alert in found]


@pytest.mark.parametrize(
    ("used", "expected"),
    [(0, []), (499, []), (500, [50]), (799, [50]), (800, [50, 80]), (969, [50, 80]),
     (970, [50, 80, 100]), (1000, [50, 80, 100]), (5000, [50, 80, 100])],
)  # fmt: skip
def test_thresholds_of_a_hard_budget(used: int, expected: list[object]) -> None:
    assert percents(Limits(budget_nanousd=1000), Use(0, used)) == expected


def test_an_alert_only_limit_is_used_up_when_it_is() -> None:
    limits = Limits(tokens_per_period=1000, alert_only=True)
    assert percents(limits, Use(999)) == [50, 80]
    assert percents(limits, Use(1000)) == [50, 80, 100]


def test_a_limit_of_nothing_tells_nothing() -> None:
    assert percents(Limits(budget_nanousd=0), Use(0, 0)) == []


def test_periods_begin_with_the_calendar_or_reach_back() -> None:
    assert period_start_s(CalendarPeriod.DAY, now_s) == day_s
    assert period_start_s(CalendarPeriod.MONTH, now_s) == month_s
    assert period_start_s(3600, now_s) == now_s - 3600


def test_another_period_or_limit_is_another_occasion() -> None:
    def occasion(limit: int, when_s: float) -> str:
        scope = LimitedScope("key", "key_1", "ci", "ten_1", Limits(budget_nanousd=limit))
        start_s = period_start_s(CalendarPeriod.DAY, when_s)
        uses = {PeriodUse("key", start_s): {"key_1": Use(0, limit // 2)}}
        return due_alerts([scope], uses, when_s)[0].occasion

    assert occasion(1000, now_s) == occasion(1000, now_s + 60)
    assert occasion(1000, now_s) != occasion(1000, now_s + 86_400)
    assert occasion(1000, now_s) != occasion(2000, now_s)


def test_credit_is_low_when_it_does_not_last_another_day() -> None:
    prepaid = Tenant(id="ten_1", name="a", create_time=0.0, credit_floor_nanousd=0)
    postpaid = Tenant(id="ten_2", name="b", create_time=0.0)
    spent = {"ten_1": Use(0, 100), "ten_2": Use(0, 100)}
    for left, count in ((101, 0), (100, 0), (99, 1), (-5, 1)):
        found = low_credits([prepaid, postpaid], {"ten_1": left}, spent, now_s)
        assert len(found) == count, left
    assert low_credits([prepaid], {"ten_1": 0}, {}, now_s) == []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_s)


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Database:
    opened = open_sqlite_copy(tmp_path / "headrace.db", clock)
    budget = Limits(budget_nanousd=1000)
    tokens = Limits(tokens_per_period=100, period=CalendarPeriod.MONTH)
    opened.store.create(Tenant(id="ten_1", name="acme", create_time=0.0, limits=budget))
    opened.store.create(Project(id="prj_1", name="web", parent_id="ten_1", create_time=0.0))
    opened.store.create(Model(id="mod_1", name="small", create_time=0.0))
    opened.store.create(
        ApiKey(
            id="key_1",
            name="ci",
            parent_id="prj_1",
            create_time=0.0,
            secret_hmac=b"x",
            model_limits={"small": tokens},
        )
    )
    for webhook_id, tenant_id in (("whk_all", ""), ("whk_acme", "ten_1"), ("whk_rival", "ten_2")):
        opened.store.create(
            Webhook(
                id=webhook_id,
                name=webhook_id,
                parent_id=tenant_id,
                create_time=0.0,
                url="https://hooks.example/",
                events=(EventType.BUDGET_THRESHOLD,),
            )
        )
    return opened


def settle(
    database: Database,
    number: int,
    nanousd: int | None,
    tokens: int,
    *,
    settle_time: float = now_s - 10,
    model: str = "small",
) -> None:
    """Book a request by its journal; without an amount it has no price yet."""
    settlement = Settlement(
        request_id=f"req-{number}",
        tenant_id="ten_1",
        project_id="prj_1",
        key_id="key_1",
        model=model,
        usage=TokenUsage(prompt_tokens=tokens, completion_tokens=0),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id=None if nanousd is None else "prb_1",
        charge=None if nanousd is None else Charge(input_nanousd=nanousd),
        settle_time=settle_time,
    )
    database.ledger.post([settlement], journal_id="jnl_1", sequence=number)


def waiting(database: Database) -> list[tuple[str, EventType]]:
    return sorted((d.webhook_id, d.event.type) for d in database.events.due(now_s + 1, 99))


def test_each_alert_is_kept_once_for_those_who_want_it(
    database: Database, clock: ManualClock
) -> None:
    watch = AlertWatch(database, clock)
    assert watch.look() == 0
    settle(database, 1, 600, 90)
    assert watch.look() == 3  # half of the budget; half and 80% of the key's tokens
    assert watch.look() == 0
    budget = EventType.BUDGET_THRESHOLD
    assert waiting(database) == [("whk_acme", budget), ("whk_all", budget)]
    settle(database, 2, 300, 0)
    assert watch.look() == 1
    assert len(waiting(database)) == 4


def test_a_journal_that_comes_a_day_late_is_seen(database: Database, clock: ManualClock) -> None:
    watch = AlertWatch(database, clock)
    settle(database, 1, 0, 10)
    assert watch.look() == 0
    settle(database, 2, 0, 70, settle_time=day_s - 3600)  # of yesterday, and free
    assert watch.look() == 2  # half and 80% of the month's tokens


def test_what_is_rated_late_is_seen(database: Database, clock: ManualClock) -> None:
    watch = AlertWatch(database, clock)
    settle(database, 1, None, 10)
    assert watch.look() == 0
    price = PriceVersion(
        "prb_1",
        Price(
            input_nanousd_per_million=1,
            cached_input_nanousd_per_million=1,
            output_nanousd_per_million=1,
        ),
    )
    rated = database.late_rating.rate(
        lambda *_: price, lambda *_: Charge(input_nanousd=600), 0.0, now_s
    )
    assert rated == 1
    assert watch.look() == 1  # half of the budget


def test_a_debit_without_a_request_is_seen(database: Database, clock: ManualClock) -> None:
    acme = database.store.get(Tenant, "ten_1")
    prepaid = msgspec.structs.replace(acme, credit_floor_nanousd=0, limits=None)
    database.store.update(prepaid)
    database.ledger.credit("ten_1", 10_000, "opening", "paid")
    settle(database, 1, 100, 1)
    watch = AlertWatch(database, clock)
    assert watch.look() == 0
    database.ledger.credit("ten_1", -9_850, "back", "taken back")
    assert watch.look() == 1  # what is left does not last another day
    assert watch.look() == 0


def test_credit_that_lasted_until_yesterday_is_not_low(
    database: Database, clock: ManualClock
) -> None:
    """The sums of two days say that it may be low; the last 24 hours say that it is not."""
    acme = database.store.get(Tenant, "ten_1")
    prepaid = msgspec.structs.replace(acme, credit_floor_nanousd=0, limits=None)
    database.store.update(prepaid)
    database.ledger.credit("ten_1", 10_000, "opening", "paid")
    settle(database, 1, 6_000, 1, settle_time=now_s - 90_000)
    settle(database, 2, 1_000, 1)
    watch = AlertWatch(database, clock)
    assert watch.look() == 0  # 3,000 are left, of which a day takes 1,000
    settle(database, 3, 1_100, 1)
    assert watch.look() == 1  # 1,900, of which a day takes 2,100


def test_a_model_whose_name_has_a_colon_is_told_of(database: Database, clock: ManualClock) -> None:
    limits = Limits(budget_nanousd=1000)
    database.store.create(Model(id="mod_2", name="qwen:8b", create_time=0.0, limits=limits))
    watch = AlertWatch(database, clock)
    settle(database, 1, 500, 1, model="qwen:8b")
    assert watch.look() == 2  # of the model, and of the tenant


def test_looks_that_take_long_are_made_less_often(database: Database) -> None:
    clock = SlowClock(now_s)
    watch = AlertWatch(database, clock)
    settle(database, 1, 0, 1)
    assert watch.look() == 0  # from 1 to 2 s
    settle(database, 2, 600, 1)
    clock.advance(15.0)
    assert watch.look() == 0  # after 16 s of 19
    clock.advance(3.0)
    assert watch.look() == 1


def test_two_watchers_keep_one_event(database: Database, clock: ManualClock) -> None:
    event = Event(
        id="evt_1",
        type=EventType.BUDGET_THRESHOLD,
        tenant_id="ten_1",
        occasion="once",
        create_time=now_s,
    )
    assert database.events.add(event, ["whk_all"])
    assert not database.events.add(event, ["whk_all"])
    assert len(waiting(database)) == 1
