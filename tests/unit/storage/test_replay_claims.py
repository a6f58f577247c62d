"""One key, one claim, until its time is over; by SQLite and by PostgreSQL."""

from headrace.storage import Database
from headrace.storage.replay_claims import Claim, Finish, Release


def claim(digest: str, request_id: str, at: float = 1_000.0, gateway: str = "gw_a") -> Claim:
    return Claim(
        digest=digest, fingerprint="f", request_id=request_id, gateway_id=gateway,
        claim_time=at, expire_time=at + 100.0,
    )  # fmt: skip


def test_who_comes_second_is_told_who_was_first(database: Database) -> None:
    store = database.replay_claims
    first = claim("a", "req_1")
    assert store.write([first, claim("b", "req_2")]) == [None, None]
    assert store.write([claim("c", "req_3"), claim("a", "req_4")]) == [None, first]
    assert [each.request_id for each in store.unfinished("gw_a")] == ["req_1", "req_2", "req_3"]


def test_a_finished_claim_stands_until_its_window_ends(database: Database) -> None:
    store = database.replay_claims
    store.write([claim("a", "req_1")])
    assert store.write([Finish("a", 1_600.0)]) == [None]
    (standing,) = store.write([claim("a", "req_2", at=1_599.0)])
    assert standing is not None
    assert (standing.request_id, standing.is_done) == ("req_1", True)
    assert store.write([claim("a", "req_3", at=1_600.0)]) == [None]


def test_a_released_key_is_free_also_for_a_claim_of_the_same_write(database: Database) -> None:
    store = database.replay_claims
    store.write([claim("a", "req_1"), claim("b", "req_2")])
    again = claim("c", "req_3")
    assert store.write([again, Release("a"), Finish("b", 2_000.0)]) == [None] * 3
    assert store.write([claim("a", "req_4")]) == [None]
    assert [each.request_id for each in store.unfinished("gw_a")] == ["req_3", "req_4"]


def test_claims_of_a_gateway_that_never_came_back_end(database: Database) -> None:
    store = database.replay_claims
    store.write([claim("a", "req_1", gateway="gone"), claim("b", "req_2", gateway="gone")])
    assert store.write([claim("a", "req_3", at=1_100.0)]) == [None]
    assert store.unfinished("gone") == []  # neither is kept for ever


def test_an_expired_key_has_one_taker_of_two(database: Database) -> None:
    store = database.replay_claims
    store.write([claim("a", "req_1")])
    new = claim("a", "req_2", at=2_000.0, gateway="gw_b")
    assert store.write([new]) == [None]
    assert store.write([claim("a", "req_3", at=2_000.0)]) == [new]
