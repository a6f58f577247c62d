from collections.abc import Callable, Sequence

import pytest

from headrace.sim.fleet.attempt import Attempt
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.event_loop import EventLoop
from headrace.sim.fleet.request import Segment, SimRequest, prefix_keys


class Recorder:
    """What engines told, and when."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self.first_s: dict[int, float] = {}
        self.end_s: dict[int, float] = {}

    def first_token(self, attempt: Attempt) -> None:
        self.first_s[attempt.request.id] = self._loop.now_s

    def finished(self, attempt: Attempt) -> None:
        assert attempt.request.id not in self.end_s, "ended twice"
        self.end_s[attempt.request.id] = self._loop.now_s


@pytest.fixture
def device() -> DeviceModel:
    return DeviceModel(
        source="test",
        fixed_s=0.001,
        weights_s=0.009,
        row_s=0.0001,
        sequence_s=0.0001,
        context_token_s=1e-7,
        pair_s=1e-9,
        kv_tokens=16_384,
        step_rows=256,
        sequences_max=64,
    )


@pytest.fixture
def attempt_of() -> Callable[..., Attempt]:
    def make(
        number: int, segments: Sequence[tuple[int, int]], output_tokens: int, arrival_s: float = 0.0
    ) -> Attempt:
        parts = tuple(Segment(*segment) for segment in segments)
        prompt = sum(part.tokens for part in parts)
        request = SimRequest(
            number,
            0,
            0,
            arrival_s,
            parts,
            prefix_keys(parts, 0),
            prompt,
            output_tokens,
            output_tokens * 2,
        )
        return Attempt(request, 1)

    return make


@pytest.fixture
def recorder_type() -> type[Recorder]:
    return Recorder
