"""Admission: all or nothing, exactly once, and no moment in which credit counts twice."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import Conflict, InvalidRequest, PaymentRequired, Unavailable
from headrace.ledger.admission import Admission, UnpricedPolicy
from headrace.ledger.reservation import Outcome, Reservation, TokenUsage, UsageSource
from headrace.sim.clock import ManualClock
from headrace.spec.prices import Price, PriceVersion

worst_case = 10 * 10 + 10 * 30 + 1  # of 10 prompt and 10 output tokens at the fixture's price
Reserve = Callable[..., Reservation]


@pytest.fixture
def admission(clock: ManualClock) -> Admission:
    made = Admission(clock)
    made.load({"ten_a": 1_000}, 0)
    return made


@pytest.fixture
def reserve(admission: Admission, price: PriceVersion) -> Reserve:
    def ask(request_id: str, on: Admission = admission, **changes: object) -> Reservation:
        arguments: dict[str, Any] = {
            "request_id": request_id,
            "tenant_id": "ten_a",
            "project_id": "prj_a",
            "key_id": "key_a",
            "model": "small",
            "price": price,
            "credit_floor_nanousd": 0,
            "prompt_tokens_max": 10,
            "output_tokens_max": 10,
            **changes,
        }
        return on.reserve(**arguments)

    return ask


def test_the_worst_case_is_held_until_the_request_ends(
    admission: Admission, reserve: Reserve
) -> None:
    held = reserve("r1")
    assert held.amount_nanousd == worst_case
    assert admission.available_nanousd("ten_a") == 1_000 - worst_case
    admission.settle(held, TokenUsage(10, 0, 2), Outcome.FINISHED)
    assert admission.available_nanousd("ten_a") == 1_000 - 160


def test_what_is_not_covered_is_refused_with_its_numbers_and_holds_nothing(
    admission: Admission, reserve: Reserve
) -> None:
    reserve("r1")
    reserve("r2")
    with pytest.raises(PaymentRequired, match="add credit or lower max_tokens") as raised:
        reserve("r3")
    assert raised.value.fields == {
        "scope": "tenant",
        "limit_name": "credit",
        "needed_nanousd": worst_case,
        "available_nanousd": 1_000 - 2 * worst_case,
    }
    assert admission.available_nanousd("ten_a") == 1_000 - 2 * worst_case
    assert admission.running_count() == 2


def test_credit_can_be_used_to_the_last_unit(admission: Admission, reserve: Reserve) -> None:
    admission.load({"ten_a": worst_case}, 0)
    reserve("r1")
    with pytest.raises(PaymentRequired):
        reserve("r2")


@pytest.mark.parametrize(("floor", "admitted"), [(-500, 3), (0, 2), (300, 1), (900, 0)])
def test_the_floor_moves_what_can_be_spent(reserve: Reserve, floor: int, admitted: int) -> None:
    for number in range(admitted):
        reserve(f"r{number}", credit_floor_nanousd=floor)
    with pytest.raises(PaymentRequired):
        reserve("one too many", credit_floor_nanousd=floor)


def test_a_postpaid_tenant_is_never_refused_for_want_of_credit(
    admission: Admission, reserve: Reserve
) -> None:
    for number in range(50):
        reserve(f"r{number}", credit_floor_nanousd=None)
    assert admission.available_nanousd("ten_a") == 1_000 - 50 * worst_case


def test_tenants_do_not_share_credit(admission: Admission, reserve: Reserve) -> None:
    admission.load({"ten_a": 1_000, "ten_b": worst_case}, 0)
    reserve("r1", tenant_id="ten_b")
    with pytest.raises(PaymentRequired):
        reserve("r2", tenant_id="ten_b")
    reserve("r3")


def test_a_tenant_without_a_balance_has_none(reserve: Reserve) -> None:
    with pytest.raises(PaymentRequired):
        reserve("r1", tenant_id="unheard of")


def test_a_second_settlement_is_an_error_that_changes_nothing(
    admission: Admission, reserve: Reserve
) -> None:
    held = reserve("r1")
    admission.settle(held, TokenUsage(10, 0, 2), Outcome.FINISHED)
    available = admission.available_nanousd("ten_a")
    with pytest.raises(Conflict, match="settled already"):
        admission.settle(held, TokenUsage(10, 0, 9), Outcome.FAILED)
    assert admission.available_nanousd("ten_a") == available


def test_a_request_id_is_admitted_once(admission: Admission, reserve: Reserve) -> None:
    held = reserve("r1")
    with pytest.raises(Conflict, match="admitted already"):
        reserve("r1")
    assert admission.available_nanousd("ten_a") == 1_000 - worst_case
    admission.settle(held, TokenUsage(), Outcome.FAILED)
    with pytest.raises(Conflict, match="admitted already"):
        reserve("r1")


def test_a_settlement_stays_held_until_a_snapshot_contains_it(
    admission: Admission, reserve: Reserve
) -> None:
    admission.settle(reserve("r1"), TokenUsage(10, 0, 0), Outcome.ABORTED)
    assert admission.available_nanousd("ten_a") == 900  # settled, not in the journal yet
    admission.load({"ten_a": 1_000}, 4)
    admission.journaled("r1", 5)
    assert admission.available_nanousd("ten_a") == 900
    admission.load({"ten_a": 1_000}, 4)  # a snapshot from before it was posted
    assert admission.available_nanousd("ten_a") == 900
    admission.load({"ten_a": 900}, 5)
    assert admission.available_nanousd("ten_a") == 900


def test_a_snapshot_that_overtakes_the_news_of_the_journal_counts_once(
    admission: Admission, reserve: Reserve
) -> None:
    admission.settle(reserve("r1"), TokenUsage(10, 0, 0), Outcome.FINISHED)
    admission.load({"ten_a": 900}, 5)
    admission.journaled("r1", 5)
    assert admission.available_nanousd("ten_a") == 900


def test_an_older_snapshot_is_ignored(admission: Admission) -> None:
    admission.load({"ten_a": 700}, 5)
    admission.load({"ten_a": 1_000}, 4)
    assert admission.available_nanousd("ten_a") == 700


def test_new_credit_shows_with_the_next_snapshot(admission: Admission) -> None:
    admission.load({"ten_a": 5_000}, 0)
    assert admission.available_nanousd("ten_a") == 5_000


def test_a_cancelled_reservation_holds_nothing_and_cannot_settle(
    admission: Admission, reserve: Reserve
) -> None:
    held = reserve("r1")
    admission.cancel(held)
    admission.cancel(held)
    assert admission.available_nanousd("ten_a") == 1_000
    with pytest.raises(Conflict):
        admission.settle(held, TokenUsage(), Outcome.FAILED)


def test_a_settlement_carries_the_price_of_its_admission(
    admission: Admission, reserve: Reserve, clock: ManualClock
) -> None:
    held = reserve("r1")
    clock.advance(3.0)
    settlement = admission.settle(held, TokenUsage(8, 3, 2), Outcome.ABORTED, UsageSource.COUNTED)
    assert settlement.price_book_id == "prb_1"
    assert settlement.amount_nanousd == 5 * 10 + 3 * 1 + 2 * 30
    assert settlement.settle_time == held.reserve_time + 3.0
    assert (settlement.outcome, settlement.source) == (Outcome.ABORTED, UsageSource.COUNTED)


def test_more_than_was_reserved_is_waived(admission: Admission, reserve: Reserve) -> None:
    settlement = admission.settle(reserve("r1"), TokenUsage(10, 0, 99), Outcome.FINISHED)
    assert settlement.amount_nanousd == worst_case
    assert settlement.usage.completion_tokens == 99
    assert admission.available_nanousd("ten_a") == 1_000 - worst_case


def test_a_model_without_a_price_is_refused(admission: Admission, reserve: Reserve) -> None:
    with pytest.raises(Unavailable, match="no price in force"):
        reserve("r1", price=None, credit_floor_nanousd=None)
    assert admission.running_count() == 0


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt_tokens_max": -1},
        {"output_tokens_max": -1},
        {"output_tokens_max": 10**9 + 1},
        {"prompt_tokens_max": 10**30},
    ],
)
def test_impossible_token_counts_are_refused(
    admission: Admission, reserve: Reserve, counts: dict[str, int]
) -> None:
    with pytest.raises(InvalidRequest, match="prompt and output tokens"):
        reserve("r1", credit_floor_nanousd=None, **counts)
    assert admission.running_count() == 0


def test_a_request_that_could_cost_absurdly_much_is_refused(
    admission: Admission, reserve: Reserve
) -> None:
    amount = 10**18
    dear = PriceVersion(
        "prb_2",
        Price(
            input_nanousd_per_million=amount,
            cached_input_nanousd_per_million=amount,
            output_nanousd_per_million=amount,
        ),
    )
    with pytest.raises(InvalidRequest, match=r"may cost more than \$1000000.00; lower max_tokens"):
        reserve("r1", credit_floor_nanousd=None, output_tokens_max=10**9, price=dear)
    assert admission.running_count() == 0


def test_unrated_requests_are_for_tenants_without_a_floor(
    clock: ManualClock, reserve: Reserve
) -> None:
    admission = Admission(clock, unpriced=UnpricedPolicy.UNRATED)
    with pytest.raises(Unavailable):
        reserve("r1", admission, price=None, credit_floor_nanousd=0)
    held = reserve("r2", admission, price=None, credit_floor_nanousd=None)
    settlement = admission.settle(held, TokenUsage(5, 0, 5), Outcome.FINISHED)
    assert settlement.amount_nanousd is None
    admission.journaled("r2", 1)


def test_running_requests_are_bounded(clock: ManualClock, reserve: Reserve) -> None:
    admission = Admission(clock, requests_max=2)
    held = reserve("r1", admission, credit_floor_nanousd=None)
    reserve("r2", admission, credit_floor_nanousd=None)
    with pytest.raises(Unavailable, match="2 requests run already"):
        reserve("r3", admission, credit_floor_nanousd=None)
    admission.settle(held, TokenUsage(), Outcome.FINISHED)
    reserve("r3", admission, credit_floor_nanousd=None)


def test_threads_cannot_overspend_together(admission: Admission, reserve: Reserve) -> None:
    admission.load({"ten_a": 20 * worst_case}, 0)
    admitted: list[Reservation] = []

    def ask(worker: int) -> None:
        for number in range(20):
            try:
                admitted.append(reserve(f"{worker}-{number}"))
            except PaymentRequired:
                continue

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 20
    assert admission.available_nanousd("ten_a") == 0
