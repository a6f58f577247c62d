import pytest

from headrace.engine.ngram_proposer import NgramProposer
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.sequence import Sequence


def propose(tokens: list[int], count: int = 4) -> list[int]:
    request = EngineRequest("r", tuple(tokens), SamplingParams())
    return NgramProposer().propose(Sequence(request, 1, 0.0, 16), count)


def test_what_followed_the_same_tokens_before_is_proposed() -> None:
    assert propose([1, 2, 3, 40, 50, 60, 70, 80, 1, 2, 3]) == [40, 50, 60, 70]


def test_of_two_places_the_later_one_is_continued() -> None:
    assert propose([1, 2, 3, 40, 9, 1, 2, 3, 50, 9, 1, 2, 3], 2) == [50, 9]


def test_a_longer_match_wins_over_a_later_one() -> None:
    tail = [7, 8, 9, 1, 2, 3]
    assert propose([*tail, 40, 41, 0, 0, 1, 2, 3, 50, 51, *tail], 2) == [40, 41]


def test_a_repetition_goes_on_past_its_end() -> None:
    assert propose([5, 6, 5, 6, 5, 6, 5], 5) == [6, 5, 6, 5, 6]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7], [1, 2, 9, 1, 2]])
def test_a_new_tail_proposes_nothing(tokens: list[int]) -> None:
    assert propose(tokens) == []


def test_bytes_that_match_across_tokens_are_no_match() -> None:
    tail = [0x01000000, 0x02000000, 0x03000000]
    shifted = [0x00000000, 0x00000001, 0x00000002, 0x00000003]
    assert propose([*shifted, 4, 5, *tail]) == []
