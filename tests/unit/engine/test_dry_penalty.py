from array import array

import numpy as np
import pytest

from headrace.engine.dry_penalty import dry_penalties, length_max, penalty_max
from headrace.engine.logit_edits import LogitEditor
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.sequence import Sequence

dry = SamplingParams(dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=2)


def penalties(*tokens: int, sampling: SamplingParams = dry) -> dict[int, float]:
    return dry_penalties(array("i", tokens), sampling)


def test_what_would_go_on_with_a_repetition_is_punished_by_its_length() -> None:
    assert penalties(1, 2, 9, 1, 2) == {9: 0.8}
    assert penalties(5, 1, 2, 9, 5, 1, 2) == {9: pytest.approx(1.6)}
    assert penalties(7, 5, 1, 2, 9, 7, 5, 1, 2) == {9: pytest.approx(3.2)}


def test_the_longest_of_several_repetitions_counts() -> None:
    assert penalties(1, 2, 9, 5, 1, 2, 9, 0, 5, 1, 2) == {9: pytest.approx(1.6)}
    assert penalties(1, 2, 9, 1, 2, 8, 1, 2) == {9: 0.8, 8: 0.8}


@pytest.mark.parametrize("tokens", [(), (1,), (1, 2), (1, 2, 3, 4), (1, 9, 2, 1)])
def test_what_is_new_is_free(tokens: tuple[int, ...]) -> None:
    assert penalties(*tokens) == {}


def test_a_breaker_ends_a_repetition_and_is_never_punished() -> None:
    broken = SamplingParams(
        dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=2, dry_breakers=frozenset({5, 8})
    )
    assert penalties(7, 5, 1, 2, 9, 7, 5, 1, 2, sampling=broken) == {9: 0.8}
    assert penalties(1, 2, 8, 1, 2, sampling=broken) == {}
    assert penalties(1, 5, 9, 1, 5, sampling=broken) == {}


def test_a_loop_without_end_has_a_bounded_penalty() -> None:
    found = penalties(*[3] * 500)
    assert found == {3: pytest.approx(min(penalty_max, 0.8 * 2.0 ** (length_max - 2)))}


def test_the_editor_lowers_the_punished_logit() -> None:
    sequence = Sequence(EngineRequest("r", (1, 2, 9, 1, 2), dry), 1, 0.0, 4)
    ids, factors, addends = LogitEditor(sequence, 16).edits()
    assert (ids.tolist(), factors.tolist()) == ([9], [1.0])
    np.testing.assert_allclose(addends, [-0.8], rtol=1e-6)
