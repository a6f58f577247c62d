"""What requests change in their logits, by a runner whose samples follow the edits."""

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence as TokenIds
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.base.errors import InvalidRequest
from headrace.engine.core import EngineCore
from headrace.engine.logit_edits import LogitEditor, mask_of, step_edits
from headrace.engine.request import EngineRequest, RequestOutput, SamplingParams
from headrace.engine.runner import StepBatch, StepResult
from headrace.engine.samples import all_banned_error
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine.sequence import Sequence
from headrace.kernels.reference.sampler import sample, top_tokens
from headrace.sim.clock import ManualClock
from headrace.sim.numpy_runner import edits_of
from headrace.sim.numpy_runner import mask_of as mask_of_row
from headrace.sim.runner import FakeModel, FakeRunner

vocab_size = 100


class FixedLogitsRunner(FakeRunner):
    """Samples every row from the same logits, greedily: 10, then 11, 12, ... are the likeliest."""

    logits = np.array([-abs(i - 10.0) + (i > 10) * 0.5 for i in range(vocab_size)], np.float32)

    def execute(self, batch: StepBatch) -> StepResult:
        super().execute(batch)
        chosen = [
            sample(
                self.logits,
                temperature=0.0,
                edits=edits_of(batch, row),
                mask=mask_of_row(batch, row),
            )
            for row in range(len(batch.sampled))
        ]
        token_ids = np.array([token.token_id for token in chosen], np.int32)
        logprobs = np.array([token.logprob for token in chosen], np.float32)
        if batch.top_counts is None:
            return StepResult(token_ids, logprobs)
        top = top_tokens(self.logits, int(batch.top_counts.max()))
        shape = (len(chosen), len(top))
        return StepResult(
            token_ids,
            logprobs,
            np.broadcast_to(np.array([token.token_id for token in top], np.int32), shape),
            np.broadcast_to(np.array([token.logprob for token in top], np.float32), shape),
        )


def run(*all_sampling: SamplingParams, prompt: tuple[int, ...] = (10, 50)) -> list[list[int]]:
    outputs = run_outputs(*all_sampling, prompt=prompt)
    return [[i for output in some for i in output.token_ids] for some in outputs]


def run_outputs(
    *all_sampling: SamplingParams, prompt: tuple[int, ...] = (10, 50)
) -> list[list[RequestOutput]]:
    core = EngineCore(
        FixedLogitsRunner(FakeModel(vocab_size)), SchedulerConfig(b"k" * 32), ManualClock()
    )
    for index, sampling in enumerate(all_sampling):
        core.submit(EngineRequest(str(index), prompt, sampling))
    outputs: list[list[RequestOutput]] = [[] for _ in all_sampling]
    while core.has_work():
        for output in core.step():
            outputs[int(output.request_id)].append(output)
    return outputs


plain = SamplingParams(max_tokens=4)


def with_fields(**fields: Any) -> SamplingParams:
    return dataclasses.replace(plain, **fields)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (plain, [10, 10, 10, 10]),
        (with_fields(presence_penalty=0.75), [10, 11, 10, 10]),
        (with_fields(frequency_penalty=0.75), [10, 11, 10, 9]),
        (with_fields(logit_bias=((7, 100.0),)), [7, 7, 7, 7]),
        (with_fields(logit_bias=((10, -100.0),)), [11, 11, 11, 11]),
        (with_fields(allowed_token_ids=frozenset({3, 99})), [3, 3, 3, 3]),
        (with_fields(bad_words=((10,),)), [11, 11, 11, 11]),
        (with_fields(bad_words=((10, 10),)), [10, 11, 10, 11]),
        (with_fields(stop_token_ids=frozenset({10}), min_tokens=2), [11, 11]),
        (with_fields(stop_token_ids=frozenset({10}), min_tokens=2, ignore_eos=True), [10] * 4),
    ],
)
def test_tokens_follow_the_edits_alone_and_among_others(
    sampling: SamplingParams, expected: list[int]
) -> None:
    assert run(sampling)[0] == expected
    assert run(plain, sampling, plain) == [[10] * 4, expected, [10] * 4]


def editor_of(sampling: SamplingParams, prompt: tuple[int, ...], output: list[int]) -> LogitEditor:
    sequence = Sequence(EngineRequest("a", prompt, sampling), 0, 0.0, 9)
    editor = LogitEditor(sequence, vocab_size)
    for token_id in output:
        editor.edits()
        sequence.tokens.append(token_id)
    return editor


def test_repetition_counts_prompt_and_output_and_the_others_the_output_alone() -> None:
    sampling = with_fields(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    edits = editor_of(sampling, (4, 5, 4), [5, 6, 6]).edits()
    rows = {int(i): (float(f), float(a)) for i, f, a in zip(*edits, strict=True)}
    assert rows == {4: (2.0, 0.0), 5: (2.0, -0.75), 6: (2.0, -1.25)}


def test_a_step_without_edits_has_no_arrays() -> None:
    assert step_edits([None, None]) == (None, None)
    done = with_fields(min_tokens=1, stop_token_ids=frozenset({3}))
    assert step_edits([editor_of(done, (1,), [2])]) == (None, None)


def test_a_mask_has_one_bit_a_token() -> None:
    words = mask_of({0, 33, 99}, vocab_size)
    assert words is not None
    assert words.tolist() == [1, 2, 0, 8]


def test_a_request_whose_every_token_is_banned_fails_alone() -> None:
    stuck = with_fields(allowed_token_ids=frozenset({10}), bad_words=((10,),))
    outputs = run_outputs(plain, stuck)
    assert [output.error for output in outputs[1]] == [all_banned_error]
    assert [output.is_callers_error for output in outputs[1]] == [True]
    assert len(outputs[0]) == 4


def test_log_probabilities_come_with_their_tokens_only_where_asked() -> None:
    outputs = run_outputs(plain, with_fields(top_logprobs=2), with_fields(top_logprobs=0))
    assert all(output.logprobs == () for output in outputs[0])
    assert [[i for i, _ in output.logprobs[0].top] for output in outputs[1]] == [[10, 11]] * 4
    assert [output.logprobs[0].top for output in outputs[2]] == [()] * 4
    assert outputs[1][0].logprobs[0].logprob == outputs[2][0].logprobs[0].logprob < 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": ((vocab_size, 1.0),)}, "logit_bias"),
        ({"allowed_token_ids": frozenset({-1})}, "allowed_token_ids"),
        ({"allowed_token_ids": frozenset()}, "allowed_token_ids"),
        ({"bad_words": ((1, vocab_size),)}, "bad_words"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        run(with_fields(**fields))
    assert refused.value.param == param


class Ascending:
    """Allows only the token after the last one, from 60 on."""

    def mask_after(self, output_token_ids: Iterable[int]) -> NDArray[np.uint32]:
        words = mask_of({60 + len(list(output_token_ids))}, vocab_size)
        assert words is not None
        return words

    def allowed_count(self, output_token_ids: TokenIds[int], guesses: TokenIds[int]) -> int:
        first = 60 + len(output_token_ids)
        right = [guess == first + place for place, guess in enumerate(guesses)]
        return [*right, False].index(False)

    def forced_after(self, output_token_ids: TokenIds[int], count: int) -> list[int]:
        first = 60 + len(output_token_ids)
        return list(range(first, first + count))

    def fresh(self) -> "Ascending":
        return Ascending()


@pytest.mark.parametrize("draft_tokens_max", [0, 2])
def test_a_constraint_decides_every_token_of_its_request_alone(draft_tokens_max: int) -> None:
    core = EngineCore(
        FixedLogitsRunner(FakeModel(vocab_size)),
        SchedulerConfig(b"k" * 32, sequences_max=4, draft_tokens_max=draft_tokens_max),
        ManualClock(),
    )
    core.submit(EngineRequest("free", (1, 2), plain))
    core.submit(EngineRequest("bound", (1, 2), plain, constraint=Ascending()))
    tokens: dict[str, list[int]] = {"free": [], "bound": []}
    while core.has_work():
        for output in core.step():
            tokens[output.request_id] += output.token_ids
    assert tokens == {"free": [10] * 4, "bound": [60, 61, 62, 63]}
    assert sum(core.stats().accepted_by_position) == (2 if draft_tokens_max else 0)
