"""How often guesses come true, learnt from those that were made and those that were not."""

import pytest

from headrace.engine.guess_acceptance import GuessAcceptance, chance_max, chance_min, chance_start
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.sequence import Sequence


def sequence(name: str = "r") -> Sequence:
    return Sequence(EngineRequest(name, (1, 2, 3), SamplingParams()), 1, 0.0, 100)


def test_a_chance_follows_what_came_true_and_stays_in_its_bounds() -> None:
    acceptance, one = GuessAcceptance(), sequence()
    assert acceptance.chance(one) == chance_start
    for _ in range(100):
        acceptance.record(one, 3, is_refused=False)
    assert acceptance.chance(one) == chance_max
    for _ in range(100):
        acceptance.record(one, 0, is_refused=True)
    assert acceptance.chance(one) == chance_min


def test_a_new_sequence_begins_with_what_others_had() -> None:
    acceptance = GuessAcceptance()
    for index in range(20):
        acceptance.record(sequence(str(index)), 1, is_refused=False)
    assert acceptance.chance(sequence()) > 0.9
    for index in range(200):
        acceptance.record(sequence(str(index)), 0, is_refused=True)
    assert acceptance.chance(sequence()) < 0.1


@pytest.mark.parametrize("token_id", [7, 8])
def test_what_was_foreseen_is_settled_once_the_token_came(token_id: int) -> None:
    acceptance, one = GuessAcceptance(), sequence()
    acceptance.foresee(one, 7)
    acceptance.settle(one)
    assert acceptance.chance(one) == chance_start  # it did not come, as in a step that failed
    acceptance.foresee(one, 7)
    one.tokens += type(one.tokens)("i", [token_id, 9, 9])
    acceptance.settle(one)
    settled = acceptance.chance(one)
    assert (settled > chance_start) == (token_id == 7)
    acceptance.settle(one)
    assert acceptance.chance(one) == settled


def test_a_chance_recovers_where_guesses_are_dear() -> None:
    acceptance, one = GuessAcceptance(), sequence()
    for _ in range(20):
        acceptance.record(one, 0, is_refused=True)
    for _ in range(200):
        acceptance.recover(one)
    assert acceptance.chance(one) == pytest.approx(chance_start, rel=0.05)


def test_what_ended_is_forgotten_and_stays_in_what_all_had() -> None:
    acceptance, one = GuessAcceptance(), sequence()
    acceptance.record(one, 5, is_refused=False)
    acceptance.foresee(one, 7)
    common = acceptance.chance(sequence("other"))
    acceptance.forget(one)
    acceptance.settle(one)
    assert acceptance.chance(one) == common > chance_start
