from array import array
from typing import Any

import pytest

from headrace.engine.logit_edits import LogitEditor, certain_addend
from headrace.engine.request import EngineRequest, SamplingParams, ThoughtBudget
from headrace.engine.sequence import Sequence
from headrace.engine.thought_budget import is_spent

opening, closing = 7, 8
begun = ThoughtBudget(2, closing)
not_begun = ThoughtBudget(2, closing, opening)


@pytest.mark.parametrize(
    ("output", "budget", "spent"),
    [
        ((), begun, False),
        ((), ThoughtBudget(0, closing), True),
        ((1,), begun, False),
        ((1, 2), begun, True),
        ((1, closing), begun, False),
        ((1, 2, closing, 3, 4, 5), begun, False),
        ((1, 2, 3), not_begun, False),
        ((1, opening, 2), not_begun, False),
        ((1, opening, 2, 3), not_begun, True),
        ((opening, 2, 3, closing, opening, 4, 5, 6), not_begun, False),
        ((closing, opening, 2, 3), not_begun, True),
    ],
)
def test_a_thought_is_spent_after_its_tokens_until_it_ends(
    output: tuple[int, ...], budget: ThoughtBudget, *, spent: bool
) -> None:
    assert is_spent(array("i", output), budget) is spent


def editor_of(output: tuple[int, ...], **fields: Any) -> LogitEditor:
    sampling = SamplingParams(thought_budget=begun, **fields)
    sequence = Sequence(EngineRequest("r", (1, closing), sampling), 1, 0.0, 9)
    sequence.tokens.extend(output)
    return LogitEditor(sequence, 16)


def test_the_editor_makes_the_closing_mark_certain_when_it_is_due() -> None:
    assert [each.tolist() for each in editor_of((1,)).edits()] == [[], [], []]
    ids, factors, addends = editor_of((1, 2)).edits()
    assert (ids.tolist(), factors.tolist(), addends.tolist()) == ([8], [1.0], [certain_addend])


def test_it_is_due_after_drafts_too() -> None:
    editor = editor_of((1,))
    assert editor.edits_after([2])[0].tolist() == [closing]
    assert editor.edits()[0].tolist() == []


def test_a_ban_is_stronger_than_a_budget() -> None:
    ids, _, addends = editor_of((1, 2), bad_words=((closing,),)).edits()
    assert list(zip(ids.tolist(), addends.tolist(), strict=True))[-1] == (closing, float("-inf"))
