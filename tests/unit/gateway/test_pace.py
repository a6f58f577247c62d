"""A stream's times are the engine's, however slowly its reader takes it."""

from headrace.gateway.pace import Pace
from headrace.sim.clock import ManualClock


class Reader:
    """Takes so long for each piece."""

    def __init__(self, clock: ManualClock, piece_s: float) -> None:
        self._clock, self._piece_s = clock, piece_s

    async def write(self, data: bytes) -> None:
        self._clock.advance(self._piece_s)


async def relayed(engine_s: float, reader_s: float) -> tuple[float, float]:
    """The bounds of five pieces, for each of which the relay waits, and then its reader."""
    clock = ManualClock()
    pace, reader, first_s = Pace(clock), Reader(clock, reader_s), None
    for _ in range(5):
        clock.advance(engine_s)
        pace.arrived()
        first_s = clock.monotonic_s() if first_s is None else first_s
        await pace.write(reader, b"piece")
    assert first_s is not None
    return pace.bounds_s(first_s)


async def test_a_reader_that_keeps_up_leaves_the_engines_own_time() -> None:
    assert await relayed(0.25, 0.0) == (1.0, 1.0)


async def test_a_slow_reader_leaves_bounds_and_its_last_piece_no_trace() -> None:
    assert await relayed(0.25, 8.0) == (1.0, 33.0)


async def test_a_stream_of_one_piece_took_no_time_after_it() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    pace.arrived()
    clock.advance(0.001)  # until its first output was noted
    assert pace.bounds_s(clock.monotonic_s()) == (0.0, 0.0)
