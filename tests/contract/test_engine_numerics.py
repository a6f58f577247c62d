"""The engine over a real (small) forward pass: drafts, edits and log-probabilities are exact."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.engine.core import EngineCore
from headrace.engine.request import EngineRequest, RequestOutput, SamplingParams
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine.sequence import Sequence
from headrace.sim.clock import ManualClock
from headrace.sim.numpy_runner import NumpyRunner
from headrace.sim.tiny_model import tiny_spec, tiny_tensors

prompt = (1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3)
Answer = tuple[list[int], list[float], RequestOutput]


class Guess:
    """Proposes a known output, with every third token wrong."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        first = sequence.completion_count
        return [
            token if place % 3 else (token + 1) % 300
            for place, token in enumerate(self._tokens[first : first + count], start=first)
        ]


def answer(
    request: EngineRequest,
    *,
    guessed: list[int] | None = None,
    step_rows: int = 32,
    before: EngineRequest | None = None,
) -> Answer:
    """What a new engine answers; `before` was answered by it already."""
    spec = tiny_spec
    runner = NumpyRunner(spec, tiny_tensors(spec), num_blocks=16)
    config = SchedulerConfig(
        b"k" * 32,
        step_rows=step_rows,
        sequences_max=2,
        draft_tokens_max=4 if guessed else 0,
    )
    core = EngineCore(runner, config, ManualClock(), Guess(guessed) if guessed else None)
    if before is not None:
        core.submit(before)
        while core.has_work():
            core.step()
    core.submit(request)
    tokens: list[int] = []
    logprobs: list[float] = []
    first: RequestOutput | None = None
    while core.has_work():
        for output in core.step():
            first = first or output
            tokens += output.token_ids
            logprobs += [token.logprob for token in output.logprobs]
        core.check_invariants()
    assert first is not None
    if guessed:
        assert sum(core.stats().accepted_by_position) > 10
    return tokens, logprobs, first


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 0.4, "top_k": 20, "top_p": 0.9},
        {"temperature": 0.0, "repetition_penalty": 1.4, "frequency_penalty": 0.3},
        {"temperature": 0.5, "presence_penalty": 0.5, "logit_bias": ((7, 2.0),)},
        {"temperature": 0.0, "bad_words": ((3, 4), (9,)), "min_tokens": 20},
        {"temperature": 0.3, "allowed_token_ids": frozenset(range(12))},
    ],
    ids=["greedy", "drawn", "penalties", "bias", "bans", "mask"],
)
def test_drafts_change_neither_tokens_nor_log_probabilities(fields: dict[str, Any]) -> None:
    common = SamplingParams(seed=3, max_tokens=40, top_logprobs=0, stop_token_ids=frozenset({299}))
    sampling = replace(common, **fields)
    plain = answer(EngineRequest("r", prompt, sampling))
    drafted = answer(EngineRequest("r", prompt, sampling), guessed=plain[0])
    assert drafted[0] == plain[0]
    assert drafted[1] == pytest.approx(plain[1], abs=1e-4)


def log_softmax_of(tokens: tuple[int, ...]) -> list[float]:
    """Each token's log-probability after those before it, each computed by its own request."""
    logprobs = []
    for index in range(1, len(tokens)):
        only = SamplingParams(
            temperature=0,
            max_tokens=1,
            top_logprobs=0,
            allowed_token_ids=frozenset({tokens[index]}),
        )
        logprobs += answer(EngineRequest("r", tokens[:index], only))[1]
    return logprobs


@pytest.mark.parametrize("step_rows", [3, 7, 32])
def test_a_prompts_log_probabilities_are_those_of_its_tokens(step_rows: int) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=2, top_logprobs=1)
    tokens, _, first = answer(EngineRequest("r", prompt, sampling), step_rows=step_rows)
    assert len(tokens) == 2
    noted = first.prompt_logprobs
    assert [token.logprob for token in noted] == pytest.approx(log_softmax_of(prompt), abs=1e-4)
    assert [len(token.top) for token in noted] == [2] * (len(prompt) - 1)
    assert all(token.top[0][1] >= token.logprob - 1e-6 for token in noted)


def test_a_prompt_can_be_scored_without_an_output() -> None:
    sampling = SamplingParams(max_tokens=0, prompt_logprobs=0)
    tokens, _, first = answer(EngineRequest("r", prompt, sampling))
    assert tokens == []
    assert len(first.prompt_logprobs) == len(prompt) - 1
    assert first.usage.completion_tokens == 0
    assert np.isfinite([token.logprob for token in first.prompt_logprobs]).all()


def test_a_prompt_that_is_cached_has_its_log_probabilities_all_the_same() -> None:
    long_prompt = prompt * 4
    sampling = SamplingParams(temperature=0, max_tokens=2)
    plain = EngineRequest("plain", long_prompt, sampling)
    scored = EngineRequest("scored", long_prompt, replace(sampling, prompt_logprobs=1))
    again = answer(replace(plain, request_id="again"), before=plain)
    assert again[2].usage.cached_tokens > 0
    tokens, _, first = answer(scored, before=plain)
    assert tokens == again[0]
    alone = answer(scored)[2]
    assert len(first.prompt_logprobs) == len(long_prompt) - 1
    assert first.prompt_logprobs == alone.prompt_logprobs
