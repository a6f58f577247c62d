"""One charge a key, whoever books first; by SQLite and by PostgreSQL."""

from collections.abc import Callable, Iterator
from itertools import permutations

import pytest
from sqlalchemy import select

from headrace.ledger.rating import rated_late
from headrace.spec.prices import Price, PriceVersion
from headrace.spec.settlements import Charge, KeyUse, Outcome, Settlement
from headrace.storage import Database
from headrace.storage.charged_keys import kept_s, key_window_s
from headrace.storage.tables import charged_keys, entries, postings

Make = Callable[..., Settlement]
start_s = 1_800_000_000.0


@pytest.fixture
def keyed(settlement: Make) -> Make:
    """A settlement under the key `k`, `at` so many seconds, begun a second before."""

    def make(request_id: str, at: float = 0.0, digest: str = "k", **changes: object) -> Settlement:
        begun = KeyUse(digest, start_s + at - 1.0)
        return settlement(request_id, settle_time=start_s + at, key_use=begun, **changes)

    return make


def lines(database: Database, request_id: str) -> set[tuple[str, int, int]]:
    columns = postings.c
    query = select(columns.account_id, columns.debit_nanousd, columns.credit_nanousd).where(
        columns.entry_id == request_id
    )
    with database.ledger._sessions.read() as connection:
        return {(str(a), int(d), int(c)) for a, d, c in connection.execute(query)}


def reason(database: Database, request_id: str) -> str:
    query = select(entries.c.reason).where(entries.c.id == request_id)
    with database.ledger._sessions.read() as connection:
        return str(connection.execute(query).scalar_one())


def batches() -> Iterator[tuple[tuple[str, ...], ...]]:
    for order in permutations(("r1", "r2", "r3")):
        yield (order,)
        yield tuple((one,) for one in order)


@pytest.mark.parametrize("posts", list(batches()))
def test_of_several_answers_to_one_key_one_is_charged(
    database: Database, keyed: Make, posts: tuple[tuple[str, ...], ...]
) -> None:
    times = {"r1": 0.0, "r2": 30.0, "r3": 90.0}
    for _ in range(2):  # delivered again, nothing changes
        for post in posts:
            database.ledger.post([keyed(one, times[one]) for one in post])
    assert database.ledger.balances() == {"ten_a": -100}
    paid, *others = (one for post in posts for one in post)
    assert lines(database, paid) == {("tenant:ten_a", 100, 0), ("platform:revenue", 0, 100)}
    for one in others:
        assert lines(database, one) == {("platform:borne", 100, 0), ("platform:revenue", 0, 100)}
        assert reason(database, one) == (
            "finished, borne by the platform: another answer is charged"
        )
    (row,) = database.ledger.usage()
    assert (row.requests, row.finished, row.amount_nanousd) == (3, 3, 100)
    assert database.ledger.check() == []


def test_keys_of_others_and_later_uses_of_the_same_are_charged(
    database: Database, keyed: Make, settlement: Make
) -> None:
    later = key_window_s + 2.0  # begun a second before that
    database.ledger.post([keyed("r1"), keyed("r2", digest="other"), settlement("r3")])
    database.ledger.post([keyed("r4", later)])
    database.ledger.post([keyed("r5", later + 1.0), keyed("r6", 0.5)])  # again; late
    assert database.ledger.balances() == {"ten_a": -400}
    for one in ("r5", "r6"):
        assert lines(database, one) == {("platform:borne", 100, 0), ("platform:revenue", 0, 100)}
    assert database.ledger.check() == []


def test_what_the_client_broke_off_is_charged_and_what_the_platform_broke_is_not(
    database: Database, keyed: Make
) -> None:
    database.ledger.post(
        [
            keyed("r1", outcome=Outcome.FAILED).borne(),
            keyed("r2", 5.0, outcome=Outcome.ABORTED, charge=Charge(input_nanousd=7)),
            keyed("r3", 9.0),
        ]
    )
    assert database.ledger.balances() == {"ten_a": -107}
    assert lines(database, "r1") == {("platform:borne", 100, 0), ("platform:revenue", 0, 100)}
    assert reason(database, "r1") == "failed, borne by the platform: broken off by us"
    assert database.ledger.check() == []


def test_a_price_that_comes_late_charges_nobody_for_what_is_borne(
    database: Database, keyed: Make
) -> None:
    database.ledger.post(
        [keyed(one, price_book_id=None, charge=None, at=float(at)) for at, one in enumerate("ab")]
    )
    version = PriceVersion(
        "prb_a",
        Price(
            input_nanousd_per_million=10**6,
            cached_input_nanousd_per_million=10**6,
            output_nanousd_per_million=10**6,
        ),
    )
    assert database.late_rating.rate(lambda *_: version, rated_late, 0.0, start_s * 2) == 2
    assert database.ledger.balances() == {"ten_a": -16}
    assert lines(database, "b") == {("platform:borne", 16, 0), ("platform:revenue", 0, 16)}
    assert database.ledger.check() == []


def test_charged_keys_are_forgotten_when_no_journal_may_bring_another(
    database: Database, keyed: Make
) -> None:
    database.ledger.post([keyed("r1"), keyed("r2", 10.0, digest="other")])
    database.ledger.post([keyed("r3", kept_s + 5.0, digest="third")])
    with database.ledger._sessions.read() as connection:
        assert set(connection.execute(select(charged_keys.c.digest)).scalars()) == {
            "other",
            "third",
        }
