"""Each kind of damage to the book is found and named."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import Connection, text

from headrace.spec.settlements import Settlement
from headrace.storage import Database


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("UPDATE postings SET debit_nanousd = debit_nanousd + 1 WHERE line = 0", "debits differ"),
        ("UPDATE postings SET debit_nanousd = -5, credit_nanousd = -5", "negative posting"),
        ("DELETE FROM settlements WHERE request_id = 'r1'", "without a settlement: r1"),
        ("DELETE FROM entries WHERE id = 'r1'", "without an entry: r1"),
        ("UPDATE settlements SET amount_nanousd = 7 WHERE request_id = 'r2'", "lines do not make"),
        ("DELETE FROM postings WHERE entry_id = 'r1'", "not posted at their amount: r1"),
        ("UPDATE accounts SET credits_nanousd = credits_nanousd + 1", "totals differ"),
        ("UPDATE usage_daily SET prompt_tokens = prompt_tokens - 1", "daily sums that differ"),
        ("DELETE FROM usage_daily", "missing in the daily sums"),
    ],
)
def test_damage_is_found(
    database: Database,
    settlement: Callable[..., Settlement],
    tampering: Callable[[Database], AbstractContextManager[Connection]],
    damage: str,
    problem: str,
) -> None:
    database.ledger.credit("ten_a", 10_000, "c", "paid")
    database.ledger.post([settlement(f"r{number}") for number in range(8)])
    assert database.ledger.check() == []
    with tampering(database) as connection:
        connection.execute(text(damage))
    assert any(problem in found for found in database.ledger.check())
