"""Mapped weights are read again beside the steps; damage ends the process."""

import queue
from collections.abc import Sequence

import pytest

from headrace.engine.runner import WeightsCheck
from headrace.engine_server.weights_check import check_weights, chunk_bytes, start_check
from headrace.sim.clock import ManualClock


class MappedWeights:
    """Weights of so many chunks, each of which takes two seconds to read."""

    def __init__(self, clock: ManualClock, finds: Sequence[WeightsCheck]) -> None:
        self._clock = clock
        self._finds = list(finds)

    def check_weights(self, byte_count: int) -> WeightsCheck:
        assert byte_count == chunk_bytes
        self._clock.advance(2)
        return self._finds.pop(0)


@pytest.mark.parametrize(("last", "sound"), [("sound", True), ("damaged", False)])
def test_reading_takes_half_of_the_time(last: WeightsCheck, sound: bool) -> None:
    clock = ManualClock()
    pauses: list[float] = []
    runner = MappedWeights(clock, ["more", "more", last, "more"])
    assert check_weights(runner, clock, pauses.append) == sound
    assert pauses == [2, 2]


def test_damage_is_told_once_with_what_to_do() -> None:
    told: queue.Queue[str] = queue.Queue()
    start_check(object(), told.put)  # weights of no file
    start_check(MappedWeights(ManualClock(), ["more", "damaged"]), told.put)
    assert "the next start packs them anew" in told.get(timeout=20)
    assert told.empty()
