"""One key, one claim, until its time is over; by SQLite and by PostgreSQL."""

import pytest

from headrace.storage import Database, replay_claims
from headrace.storage.replay_claims import Claim, Finish, Release, Renew


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
    assert store.write([Finish("a", "req_1", 1_600.0)]) == [None]
    (standing,) = store.write([claim("a", "req_2", at=1_599.0)])
    assert standing is not None
    assert (standing.request_id, standing.is_done) == ("req_1", True)
    assert store.write([claim("a", "req_3", at=1_600.0)]) == [None]


def test_a_released_key_is_free_also_for_a_claim_of_the_same_write(database: Database) -> None:
    store = database.replay_claims
    store.write([claim("a", "req_1"), claim("b", "req_2")])
    again = claim("c", "req_3")
    assert store.write([again, Release("a", "req_1"), Finish("b", "req_2", 2_000.0)]) == [None] * 3
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


def test_who_lost_its_claim_changes_nothing_of_the_next(database: Database) -> None:
    store = database.replay_claims
    store.write([claim("a", "req_1")])
    taken = claim("a", "req_2", at=2_000.0, gateway="gw_b")
    store.write([taken])
    assert store.write([Renew("a", "req_1", 9_000.0)]) == [None]
    assert store.write([Finish("a", "req_1", 9_000.0)]) == [None]
    assert store.write([Release("a", "req_1")]) == [None]
    assert store.standing(["a", "b"]) == [taken, None]


def test_a_renewed_claim_holds_longer(database: Database) -> None:
    store = database.replay_claims
    store.write([claim("a", "req_1"), claim("b", "req_2")])
    store.write([Renew("a", "req_1", 3_000.0)])
    standing = store.write([claim("a", "req_3", at=2_000.0), claim("b", "req_4", at=2_000.0)])
    assert [each and each.request_id for each in standing] == ["req_1", None]


def test_answers_are_kept_as_long_as_their_claims_and_no_more_than_there_is_room_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_claims, "answers_max", 2)
    store = database.replay_claims
    ids = [f"req_{number}" for number in range(4)]
    for number, one in enumerate(ids):
        store.write([claim(one, one)])
        store.write([Finish(one, one, 2_000.0 + number, one.encode())])
    assert [store.answer(one) for one in ids] == [one.encode() for one in ids]
    store.write([claim("later", "req_later", at=1_500.0)])  # cleans
    assert [store.answer(one) for one in ids] == [None, None, b"req_2", b"req_3"]
    store.write([claim("last", "req_last", at=2_002.5)])
    assert [store.answer(one) for one in ids] == [None, None, None, b"req_3"]
