"""What an engine keeps is counted from its changes."""

from headrace.gateway.cache_follower import CacheView, KvAnswer, KvEvent


def answer(*events: KvEvent, epoch: str = "e1", next_: int = 1, reset: bool = False) -> KvAnswer:
    return KvAnswer(epoch, next_, 16, reset, events)


def test_stored_and_removed_blocks_are_counted() -> None:
    view = CacheView()
    assert not view.take(answer(KvEvent("stored", ("a", "b", "c")), reset=True, next_=3))
    assert not view.take(answer(KvEvent("removed", ("a",)), KvEvent("stored", ("d", "e")), next_=6))
    assert (view.blocks, view.since, view.epoch) == (4, 6, "e1")


def test_a_cleared_cache_and_another_life_are_told() -> None:
    view = CacheView()
    view.take(answer(KvEvent("stored", ("a", "b"))))
    assert view.take(answer(KvEvent("cleared"), KvEvent("stored", ("c",))))
    assert view.blocks == 1
    assert view.take(answer(KvEvent("stored", ("x", "y")), epoch="e2", reset=True))
    assert (view.blocks, view.epoch) == (2, "e2")
