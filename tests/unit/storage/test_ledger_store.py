"""The book: everything once, everything balanced, and an honest snapshot of it."""

from collections.abc import Callable

import pytest
from sqlalchemy.exc import DBAPIError

from headrace.base.errors import Conflict, InvalidRequest
from headrace.spec.settlements import Charge, Settlement, TokenUsage
from headrace.storage import Database, LedgerSnapshot

Make = Callable[..., Settlement]


def test_credit_and_settlements_make_the_balance(database: Database, settlement: Make) -> None:
    ledger = database.ledger
    ledger.credit("ten_a", 1_000, "first", "welcome")
    assert ledger.post([settlement("r1"), settlement("r2")]) == 2
    assert ledger.balances() == {"ten_a": 800}
    assert ledger.check() == []


def test_a_request_is_booked_once_whatever_is_delivered(
    database: Database, settlement: Make
) -> None:
    ledger = database.ledger
    batch = [settlement("r1"), settlement("r2"), settlement("r1")]
    assert ledger.post(batch) == 2
    assert ledger.post(batch) == 0
    assert ledger.post([*batch, settlement("r3")]) == 1
    assert ledger.settlement_count() == 3
    assert ledger.balances() == {"ten_a": -300}
    assert ledger.usage()[0].requests == 3
    assert ledger.check() == []


def test_a_batch_larger_than_one_query_is_deduplicated(
    database: Database, settlement: Make
) -> None:
    batch = [settlement(f"r{number}") for number in range(1_201)]
    assert database.ledger.post(batch[:700]) == 700
    assert database.ledger.post(batch) == 501
    assert database.ledger.check() == []


def test_an_unrated_settlement_moves_no_money_and_is_counted(
    database: Database, settlement: Make
) -> None:
    ledger = database.ledger
    ledger.post([settlement("r1", price_book_id=None, charge=None), settlement("r2")])
    (row,) = ledger.usage()
    assert (row.requests, row.unrated, row.amount_nanousd) == (2, 1, 100)
    assert ledger.balances() == {"ten_a": -100}
    assert ledger.check() == []


def test_a_free_request_is_rated_at_zero_and_is_not_unrated(
    database: Database, settlement: Make
) -> None:
    database.ledger.post([settlement("r1", charge=Charge())])
    assert database.ledger.usage()[0].unrated == 0
    assert database.ledger.balances() == {"ten_a": 0}
    assert database.ledger.check() == []


def test_credit_is_booked_once_by_its_entry_id(database: Database) -> None:
    ledger = database.ledger
    assert ledger.credit("ten_a", 500, "invoice-1", "paid")
    assert not ledger.credit("ten_a", 500, "invoice-1", "paid again")
    assert ledger.balances() == {"ten_a": 500}
    for tenant_id, amount in (("ten_b", 500), ("ten_a", 501)):
        with pytest.raises(Conflict, match="another tenant or amount"):
            ledger.credit(tenant_id, amount, "invoice-1", "paid")


def test_credit_can_be_taken_back(database: Database) -> None:
    ledger = database.ledger
    ledger.credit("ten_a", 500, "one", "paid")
    ledger.credit("ten_a", -200, "two", "refund")
    assert ledger.balances() == {"ten_a": 300}
    assert ledger.check() == []


@pytest.mark.parametrize(
    ("amount", "entry_id", "reason", "param"),
    [
        (0, "c", "oops", "amount_nanousd"),
        (10**17, "c", "a fat finger", "amount_nanousd"),
        (-(10**17), "c", "another", "amount_nanousd"),
        (1, "", "no id", "entry_id"),
        (1, "c" * 101, "a long id", "entry_id"),
        (1, "c", "r" * 256, "reason"),
    ],
)
def test_credits_that_cannot_be_meant_are_refused(
    database: Database, amount: int, entry_id: str, reason: str, param: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        database.ledger.credit("ten_a", amount, entry_id, reason)
    assert raised.value.param == param
    assert database.ledger.balances() == {}


def test_an_entry_id_cannot_shadow_a_request(database: Database, settlement: Make) -> None:
    database.ledger.credit("ten_a", 500, "r1", "an unlucky name")
    assert database.ledger.post([settlement("r1")]) == 1
    assert database.ledger.balances() == {"ten_a": 400}


def test_a_snapshot_holds_the_balances_and_the_cursors_of_one_moment(
    database: Database, settlement: Make
) -> None:
    ledger = database.ledger
    ledger.post([settlement("r1")], journal_id="jrn_1", sequence=7)
    ledger.post([settlement("r2", tenant_id="ten_b")], journal_id="jrn_2", sequence=3)
    ledger.post([], journal_id="jrn_1", sequence=9)
    ledger.post([settlement("r1")], journal_id="jrn_1", sequence=5)  # delivered again, late
    assert ledger.snapshot() == LedgerSnapshot(
        {"ten_a": -100, "ten_b": -100},
        {"jrn_1": 9, "jrn_2": 3},
        {"ten_a": (0, 100), "ten_b": (0, 100)},
    )


def test_nothing_of_a_batch_that_fails_is_kept(
    database: Database, settlement: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr("headrace.storage.posting.move_cursor", broken)
    with pytest.raises(RuntimeError, match="power cut"):
        database.ledger.post([settlement("r1")], journal_id="jrn_1", sequence=1)
    monkeypatch.undo()
    assert database.ledger.settlement_count() == 0
    assert database.ledger.snapshot() == LedgerSnapshot({}, {})
    assert database.ledger.post([settlement("r1")], journal_id="jrn_1", sequence=1) == 1


@pytest.mark.parametrize("table", ["entries", "postings", "settlements"])
@pytest.mark.parametrize("change", ["DELETE FROM {}", "UPDATE {} SET {}"])
def test_the_database_refuses_to_change_the_book(
    database: Database, settlement: Callable[..., Settlement], table: str, change: str
) -> None:
    database.ledger.post([settlement("r1")])
    column = {"entries": "reason = ''", "postings": "line = 9", "settlements": "model = ''"}
    with (
        pytest.raises(DBAPIError, match="append-only"),
        database.ledger._sessions.engine.begin() as connection,
    ):
        connection.exec_driver_sql(change.format(table, column[table]))
    assert database.ledger.check() == []


def test_token_classes_are_summed_where_they_were_counted(
    database: Database, settlement: Callable[..., Settlement]
) -> None:
    counted = TokenUsage(10, 4, 6, reasoning_tokens=5, image_tokens=3)
    database.ledger.post([settlement("r1", usage=counted), settlement("r2")])
    (row,) = database.ledger.usage()
    assert (row.reasoning_tokens, row.image_tokens, row.draft_tokens) == (5, 3, 0)
    with database.ledger._sessions.read() as connection:
        query = "SELECT request_id, reasoning_tokens FROM settlements ORDER BY request_id"
        assert connection.exec_driver_sql(query).all() == [("r1", 5), ("r2", None)]
    assert database.ledger.check() == []
