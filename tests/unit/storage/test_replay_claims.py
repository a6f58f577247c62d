"""One key, one claim, until its time is over; by SQLite and by PostgreSQL."""

from collections.abc import Sequence

import pytest

from headrace.storage import Database, replay_claims
from headrace.storage.replay_claims import Claim, Finish, Release, Renew, ReplayClaims, Take


class StoreClock:
    """The store's time, which the test says; that of whoever asks counts for nothing."""

    now_s = 1_000.0

    def time_s(self, *_: object) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoreClock:
    clock = StoreClock()
    monkeypatch.setattr(replay_claims, "store_time_s", clock.time_s)
    return clock


@pytest.fixture
def store(database: Database, clock: StoreClock) -> ReplayClaims:
    return database.replay_claims


def take(digest: str, request_id: str, gateway: str = "gw_a") -> Take:
    return Take(digest, "f", request_id, gateway, lease_s=100.0)


def ids(claims: Sequence[Claim | None]) -> list[str | None]:
    return [None if each is None else each.request_id for each in claims]


def test_who_comes_second_is_told_who_was_first(store: ReplayClaims, clock: StoreClock) -> None:
    assert store.write([take("a", "req_1"), take("b", "req_2")]) == [None, None]
    clock.now_s += 30.0
    nothing, first = store.write([take("c", "req_3"), take("a", "req_4")])
    assert nothing is None
    assert first == Claim(
        digest="a", fingerprint="f", request_id="req_1", gateway_id="gw_a", left_s=70.0
    )
    assert ids(store.unfinished("gw_a")) == ["req_1", "req_2", "req_3"]


def test_a_finished_claim_stands_until_its_window_ends(
    store: ReplayClaims, clock: StoreClock
) -> None:
    store.write([take("a", "req_1")])
    assert store.write([Finish("a", "req_1", 600.0)]) == [None]
    clock.now_s += 599.0
    (standing,) = store.write([take("a", "req_2")])
    assert standing is not None
    assert (standing.request_id, standing.is_done, standing.left_s) == ("req_1", True, 1.0)
    clock.now_s += 1.0
    assert store.write([take("a", "req_3")]) == [None]


def test_a_released_key_is_free_also_for_a_claim_of_the_same_write(store: ReplayClaims) -> None:
    store.write([take("a", "req_1"), take("b", "req_2")])
    again = take("c", "req_3")
    assert store.write([again, Release("a", "req_1"), Finish("b", "req_2", 900.0)]) == [None] * 3
    assert store.write([take("a", "req_4")]) == [None]
    assert ids(store.unfinished("gw_a")) == ["req_3", "req_4"]


def test_claims_of_a_gateway_that_never_came_back_end(
    store: ReplayClaims, clock: StoreClock
) -> None:
    store.write([take("a", "req_1", gateway="gone"), take("b", "req_2", gateway="gone")])
    clock.now_s += 100.0
    assert store.write([take("a", "req_3")]) == [None]
    assert store.unfinished("gone") == []  # neither is kept for ever


def test_an_expired_key_has_one_taker_of_two(store: ReplayClaims, clock: StoreClock) -> None:
    store.write([take("a", "req_1")])
    clock.now_s += 1_000.0
    assert store.write([take("a", "req_2", gateway="gw_b")]) == [None]
    assert ids(store.write([take("a", "req_3")])) == ["req_2"]


def test_who_lost_its_claim_changes_nothing_of_the_next(
    store: ReplayClaims, clock: StoreClock
) -> None:
    store.write([take("a", "req_1")])
    clock.now_s += 1_000.0
    store.write([take("a", "req_2", gateway="gw_b")])
    (taken,) = store.standing(["a"])
    assert store.write([Renew("a", "req_1", 9_000.0)]) == [None]
    assert store.write([Finish("a", "req_1", 9_000.0)]) == [None]
    assert store.write([Release("a", "req_1")]) == [None]
    assert store.standing(["a", "b"]) == [taken, None]
    assert taken is not None
    assert (taken.request_id, taken.left_s, taken.is_done) == ("req_2", 100.0, False)


def test_a_renewed_claim_holds_longer(store: ReplayClaims, clock: StoreClock) -> None:
    store.write([take("a", "req_1"), take("b", "req_2")])
    store.write([Renew("a", "req_1", 2_000.0)])
    clock.now_s += 1_000.0
    assert ids(store.write([take("a", "req_3"), take("b", "req_4")])) == ["req_1", None]


def test_answers_are_kept_as_long_as_their_claims_and_no_more_than_there_is_room_for(
    store: ReplayClaims, clock: StoreClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_claims, "answers_max", 2)
    names = [f"req_{number}" for number in range(4)]
    for number, one in enumerate(names):
        store.write([take(one, one)])
        store.write([Finish(one, one, 1_000.0 + number, one.encode())])
    assert [store.answer(one) for one in names] == [one.encode() for one in names]
    clock.now_s += 500.0
    store.write([take("later", "req_later")])  # cleans
    assert [store.answer(one) for one in names] == [None, None, b"req_2", b"req_3"]
    clock.now_s += 502.5
    store.write([take("last", "req_last")])
    assert [store.answer(one) for one in names] == [None, None, None, b"req_3"]


def test_of_answers_beyond_the_room_in_bytes_the_newest_stay(
    store: ReplayClaims, clock: StoreClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_claims, "answers_bytes_max", 250)
    store.write([take("first", "req_first")])  # cleans
    for number in range(4):
        store.keep(f"req_{number}", bytes([number]) * 100, 1_000.0 + number)
    clock.now_s += 60.0
    store.write([take("later", "req_later")])
    kept = [store.answer(f"req_{number}") for number in range(4)]
    assert kept == [None, None, b"\x02" * 100, b"\x03" * 100]


def test_an_answer_that_was_kept_before_is_not_written_again(store: ReplayClaims) -> None:
    store.write([take("a", "req_1")])
    store.keep("req_1", b"large", 600.0)
    store.write([Finish("a", "req_1", 600.0)])
    assert store.answer("req_1") == b"large"
