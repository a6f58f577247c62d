"""Guesses within a grammar: the same tokens in fewer steps, over a random model of bytes."""

import json
import re
from pathlib import Path

import pytest

from headrace.engine.core import EngineCore
from headrace.engine.request import EngineRequest, FinishReason, SamplingParams
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine_server.grammars import GrammarCompiler
from headrace.engine_server.messages import Grammar
from headrace.sim.clock import ManualClock
from headrace.sim.numpy_runner import NumpyRunner
from headrace.sim.tiny_model import tiny_spec, tiny_tensors

end = 256
schema = {
    "type": "object",
    "properties": {
        "temperature_celsius": {"type": "integer", "minimum": 0, "maximum": 9},
        "weather": {"enum": ["sunshine", "snow"]},
    },
    "required": ["temperature_celsius", "weather"],
    "additionalProperties": False,
}
grammars = {
    "schema": Grammar("json_schema", json.dumps(schema), "guided_json"),
    "tags": Grammar("lark", 'start: t\nt[lazy]: /(?s:.{0,6})/ "<a>"', "response_format"),
    "forced": Grammar(
        "lark",
        'start: "temperature_celsius=" /[0-9]/ "; weather=" ("sunshine" | "snow")',
        "guided_grammar",
    ),
    "regex": Grammar("regex", "(ab|ba){3,4}", "guided_regex"),
}
Answers = dict[int, tuple[list[int], FinishReason | None]]


@pytest.fixture
def compiler(byte_model: Path) -> GrammarCompiler:
    return GrammarCompiler(byte_model, tiny_spec.vocab_size)


def answers(
    compiler: GrammarCompiler, name: str, sampling: SamplingParams, draft_tokens_max: int
) -> tuple[Answers, int]:
    """Two answers of a request with the grammar, beside one without; and the steps it took."""
    runner = NumpyRunner(tiny_spec, tiny_tensors(tiny_spec), num_blocks=32)
    config = SchedulerConfig(b"k" * 32, sequences_max=4, draft_tokens_max=draft_tokens_max)
    core = EngineCore(runner, config, ManualClock())
    constraint = compiler.compile(grammars[name])
    core.submit(EngineRequest("r", (1, 2, 3), sampling, constraint=constraint, choice_count=2))
    core.submit(EngineRequest("free", (5, 6), SamplingParams(max_tokens=6, seed=1)))
    tokens: dict[int, list[int]] = {0: [], 1: []}
    reasons: dict[int, FinishReason | None] = {}
    while core.has_work():
        for output in core.step():
            if output.request_id == "r":
                tokens[output.index] += output.token_ids
                reasons[output.index] = output.finish_reason
        core.check_invariants()
    return {index: (tokens[index], reasons[index]) for index in tokens}, core.stats().steps_total


@pytest.mark.parametrize("name", list(grammars))
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1.2, seed=11, presence_penalty=0.7, repetition_penalty=1.2),
        SamplingParams(temperature=0.8, seed=5, typical_p=0.7, logit_bias=((97, 2.0),)),
        SamplingParams(temperature=1.0, seed=6, bad_words=((97, 98, 97),), min_tokens=3),
    ],
)
def test_guesses_change_no_token_of_an_answer_with_a_grammar(
    compiler: GrammarCompiler, name: str, sampling: SamplingParams
) -> None:
    asked = SamplingParams(
        **{
            **{field: getattr(sampling, field) for field in sampling.__slots__},
            "max_tokens": 36,
            "stop_token_ids": frozenset({end}),
        }
    )
    plain, _ = answers(compiler, name, asked, 0)
    guessed, _ = answers(compiler, name, asked, 6)
    assert guessed == plain


def test_what_a_grammar_forces_is_not_waited_for(compiler: GrammarCompiler) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=60, stop_token_ids=frozenset({end}))
    plain, slow = answers(compiler, "forced", sampling, 0)
    guessed, fast = answers(compiler, "forced", sampling, 8)
    assert guessed == plain
    text = bytes(plain[0][0]).decode()
    assert re.fullmatch(r"temperature_celsius=\d; weather=(sunshine|snow)", text)
    assert fast < slow / 2


def test_a_constraint_goes_back_from_guesses_that_were_wrong(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(grammars["regex"])
    first = constraint.mask_after(b"ab").copy()
    constraint.mask_after(b"abba")
    constraint.mask_after(b"abab")
    assert (constraint.mask_after(b"ab") == first).all()
    assert constraint.allowed_count(b"ab", b"baxx") == 2
    assert constraint.allowed_count(b"ab", b"x") == 0
    assert constraint.forced_after(b"a", 4) == [ord("b")]
    assert constraint.forced_after(b"ab", 4) == []


def test_a_constraint_goes_back_from_its_end(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(Grammar("regex", "ab?", "guided_regex"))
    before = constraint.mask_after(b"a").copy()
    constraint.mask_after(b"ab")
    constraint.mask_after([97, 98, end])
    assert constraint.allowed_count([97, 98, end], [97]) == 0
    assert constraint.forced_after([97, 98, end], 3) == []
    assert (constraint.mask_after(b"a") == before).all()
