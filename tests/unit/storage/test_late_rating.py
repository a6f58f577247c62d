"""Prices after the fact: rated once, in the book and in every sum; the rest of the past stays."""

from collections.abc import Callable

import pytest
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError

from headrace.spec.prices import Price, PriceVersion
from headrace.spec.settlements import Charge, Settlement, TokenUsage, UnitCounts
from headrace.storage import Database, late_rating
from headrace.storage.tables import settlements

Make = Callable[..., Settlement]
price = Price(
    input_nanousd_per_million=1, cached_input_nanousd_per_million=1, output_nanousd_per_million=1
)


def price_of(tenant_id: str, model: str, time_s: float) -> PriceVersion | None:
    return PriceVersion("prb_late", price) if model == "small" else None


def rate(version: PriceVersion, settlement: Settlement) -> Charge:
    usage = settlement.usage
    return Charge(input_nanousd=usage.prompt_tokens, output_nanousd=usage.completion_tokens * 2)


def test_what_waited_is_rated_once_and_the_book_stays_sound(
    database: Database, settlement: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_rating, "page_rows", 3)
    waiting = [
        settlement(f"r{n}", price_book_id=None, charge=None, settle_time=1.8e9 + n // 2)
        for n in range(10)
    ]
    other = settlement("other", model="large", price_book_id=None, charge=None)
    database.ledger.post([*waiting, other, settlement("rated")])

    assert database.late_rating.rate(price_of, rate, 0.0, 2e9) == 10
    assert database.late_rating.rate(price_of, rate, 0.0, 2e9) == 0
    assert database.ledger.check() == []
    [small] = database.ledger.usage(("model",), filters={"model": "small"})
    assert (small.requests, small.unrated, small.amount_nanousd) == (11, 0, 100 + 10 * 22)
    assert database.ledger.balances()["ten_a"] == -(100 + 10 * 22)
    [large] = database.ledger.usage(("model",), filters={"model": "large"})
    assert (large.unrated, large.amount_nanousd) == (1, 0)


def test_only_the_span_is_rated(database: Database, settlement: Make) -> None:
    for n in range(3):
        waiting = settlement(f"r{n}", price_book_id=None, charge=None, settle_time=1.8e9 + n)
        database.ledger.post([waiting])
    assert database.late_rating.rate(price_of, rate, 1.8e9 + 1, 1.8e9 + 2) == 1
    read = list(database.late_rating.read(1.8e9, 1.8e9 + 2))
    assert [(found.request_id, found.charge is None) for found in read] == [
        ("r0", True),
        ("r1", False),
    ]
    assert list(database.late_rating.read(0.0, 2e9, "ten_b")) == []


def test_what_is_read_is_what_was_booked(database: Database, settlement: Make) -> None:
    usage = TokenUsage(5, 1, 4, reasoning_tokens=2, image_tokens=0)
    units = UnitCounts(1, 2, None, 3)
    booked = settlement("r", usage=usage, replica_id="rep_1", price_percent=50, units=units)
    database.ledger.post([booked])
    assert list(database.late_rating.read(0.0, 2e9)) == [booked]


def test_a_batch_is_rated_late_at_its_own_share(database: Database, settlement: Make) -> None:
    waiting = settlement("r", price_book_id=None, charge=None, price_percent=50)
    database.ledger.post([waiting])
    versions: list[PriceVersion] = []

    def rate_and_note(version: PriceVersion, settlement: Settlement) -> Charge:
        versions.append(version)
        return rate(version, settlement)

    dear = PriceVersion("prb_late", price.shared(1000))
    assert database.late_rating.rate(lambda *_: dear, rate_and_note, 0.0, 2e9) == 1
    assert versions == [PriceVersion("prb_late", price.shared(500))]


@pytest.mark.parametrize(
    "change",
    [
        {"price_percent": 1},
        {"prompt_tokens": 1},
        {"price_book_id": "prb_b", "completion_tokens": 0},
        {"amount_nanousd": 1},
    ],
)
def test_nothing_else_of_a_settlement_changes(
    database: Database, settlement: Make, change: dict[str, object]
) -> None:
    database.ledger.post([settlement("rated"), settlement("r", price_book_id=None, charge=None)])
    sessions = database.ledger._sessions
    for request_id in ("rated", "r"):
        statement = update(settlements).where(settlements.c.request_id == request_id)
        with (
            pytest.raises(DBAPIError, match="append-only"),
            sessions.engine.begin() as connection,
        ):
            connection.execute(statement.values(change))
