"""The learnt share of growth to leave room for."""

import pytest

from headrace.engine.growth import GrowthEstimate
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.sequence import Sequence


def make_sequence(max_tokens: int) -> Sequence:
    return Sequence(EngineRequest("r", (1,), SamplingParams()), 1, 0.0, max_tokens)


def test_half_of_what_may_come_is_expected_at_first() -> None:
    estimate = GrowthEstimate(block_size_tokens=16)
    assert estimate.blocks([make_sequence(128), make_sequence(64)]) == 6


def test_what_was_generated_is_not_expected_again() -> None:
    sequence = make_sequence(128)
    sequence.tokens.extend(range(96))
    assert GrowthEstimate(block_size_tokens=16).blocks([sequence]) == 1


def test_an_open_limit_does_not_reserve_a_whole_context() -> None:
    assert GrowthEstimate(block_size_tokens=16).blocks([make_sequence(100_000)]) == 16


def test_preemptions_raise_the_share_and_quiet_steps_lower_it_within_bounds() -> None:
    estimate = GrowthEstimate(block_size_tokens=16)
    for _ in range(20):
        estimate.preempted()
    assert estimate.share == 1.0
    estimate.quiet_step()
    assert estimate.share == pytest.approx(0.998)
    for _ in range(5000):
        estimate.quiet_step()
    assert estimate.share == 0.1
