"""Random arrivals, choices, classes, salts, aborts and tiny pools: the engine equals the oracle.

After every step the invariants hold, every request's tokens are a prefix of what the model says
for it alone, and the oldest request of the top class gets on. A failure prints the blob that
repeats it.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.base.errors import RateLimited
from headrace.engine.core import EngineCore
from headrace.engine.draft_model import DraftModel
from headrace.engine.request import (
    EngineRequest,
    FinishReason,
    RequestOutput,
    RequestUsage,
    SamplingParams,
)
from headrace.engine.runner import StepBatch
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine.sequence import Sequence, preemptions_max
from headrace.sim.clock import ManualClock, SteppingClock
from headrace.sim.runner import FakeModel, FakeRunner

vocab_size = 16  # few tokens, so that stop tokens and the poisonous one come up
poison = 15
machine_settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

prompts = st.lists(st.integers(0, 4), min_size=1, max_size=14).map(tuple)
shared_prompts = st.builds(
    lambda repeat, tail: ((0, 1, 2) * 4)[:repeat] + tail, st.integers(4, 12), prompts
)
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7]),
    top_k=st.integers(0, 3),
    top_p=st.sampled_from([0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.25]),
    seed=st.integers(0, 2**64 - 1),
    max_tokens=st.integers(1, 16),
    min_tokens=st.integers(0, 3),
    stop_token_ids=st.sampled_from([frozenset(), frozenset({3}), frozenset({0, 1})]),
    ignore_eos=st.booleans(),
)


Key = tuple[str, int]  # request id and choice


class Expectation:
    """One live choice: what it must answer and what it has answered."""

    def __init__(
        self, request: EngineRequest, model: FakeModel, limit: int, arrival: int, index: int
    ) -> None:
        self.request = request
        self.order = (request.priority, arrival)
        sampling = replace(request.sampling, seed=request.sampling.seed + index)
        self.tokens, self.reason = model.generate(request.prompt_token_ids, sampling, limit)
        self.received: list[int] = []
        self.aborted = False
        max_tokens = min(request.sampling.max_tokens, limit - len(request.prompt_token_ids))
        self.length_max = len(request.prompt_token_ids) + max_tokens

    def take(self, output: RequestOutput) -> None:
        self.received += output.token_ids
        assert self.received == self.tokens[: len(self.received)]
        usage = output.usage
        if output.finish_reason is FinishReason.ABORT and usage == RequestUsage(0, 0, 0):
            # It left before it had a token, maybe before it was scheduled: nothing is counted.
            assert self.aborted
            assert not self.received
            return
        assert usage.completion_tokens == len(self.received)
        if usage.prompt_tokens or self.request.choice_count == 1:
            assert usage.prompt_tokens == len(self.request.prompt_token_ids)
            assert 0 <= usage.cached_tokens < usage.prompt_tokens
        else:  # another choice counts the prompt
            assert usage.cached_tokens == 0
        if output.finish_reason is FinishReason.ABORT:
            assert self.aborted
        elif output.finish_reason is not None:
            assert output.finish_reason is self.reason
            assert self.received == self.tokens
            assert (output.error is not None) == (self.reason is FinishReason.ERROR)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(2, 12),
        block_size_tokens=st.integers(1, 4),
        max_model_len=st.integers(8, 40),
        rows_max=st.integers(1, 12),
        sequences_max=st.integers(1, 6),
        waiting_max=st.integers(2, 8),
        caching=st.booleans(),
        draft_tokens_max=st.sampled_from([0, 1, 4]),
        draft_vocab_size=st.sampled_from([None, vocab_size, vocab_size - 3]),
        host_blocks_max=st.sampled_from([0, 3, 100]),
        clock=st.sampled_from([ManualClock, SteppingClock]),  # copying costs nothing, or too much
    )
    def build(
        self,
        num_blocks: int,
        block_size_tokens: int,
        max_model_len: int,
        rows_max: int,
        sequences_max: int,
        waiting_max: int,
        caching: bool,
        draft_tokens_max: int,
        draft_vocab_size: int | None,
        host_blocks_max: int,
        clock: type[ManualClock],
    ) -> None:
        self.model = FakeModel(vocab_size, poison)
        self.limit = min(max_model_len, num_blocks * block_size_tokens)
        self.abort_during_step: list[Key] = []
        self.runner = FakeRunner(
            self.model,
            num_blocks=num_blocks,
            block_size_tokens=block_size_tokens,
            max_model_len=max_model_len,
            rows_max=rows_max,
            sequences_max=sequences_max + draft_tokens_max,
            during_step=self.abort_some,
        )
        config = SchedulerConfig(
            prefix_cache_key=b"k" * 32 if caching else None,
            sequences_max=sequences_max,
            waiting_max=waiting_max,
            draft_tokens_max=draft_tokens_max,
            host_blocks_max=host_blocks_max,
        )
        self.waiting_max = waiting_max
        self.clock = clock()
        self.draft_model: DraftModel | None = None
        if draft_vocab_size is not None:  # it agrees with the model, or not
            draft_runner = FakeRunner(
                FakeModel(draft_vocab_size, poison),
                num_blocks=num_blocks,
                block_size_tokens=block_size_tokens,
                max_model_len=max_model_len,
                rows_max=rows_max + sequences_max,
                sequences_max=sequences_max,
            )
            self.draft_model = DraftModel(draft_runner, self.clock, vocab_size)
        self.core = EngineCore(self.runner, config, self.clock, self.draft_model or self)
        self.live: dict[Key, Expectation] = {}
        self.arrival_count = 0
        self.head: Expectation | None = None
        self.head_is_known = True  # until classes change by ageing
        self.head_steps = self.head_steps_max = 0

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        """Guess right, but for every third token of the output."""
        expectation = self.live[sequence.request_id, sequence.index]
        first = sequence.completion_count
        return [
            token if place % 3 else (token + 1) % vocab_size
            for place, token in enumerate(expectation.tokens[first : first + count], start=first)
        ]

    def abort_some(self, _: StepBatch) -> None:
        while self.abort_during_step:
            self.core.abort(*self.abort_during_step.pop())

    @rule(
        prompt=st.one_of(prompts, shared_prompts),
        sampling=samplings,
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "tenant"]),
        choice_count=st.integers(1, 3),
    )
    def submit(
        self,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        priority: int,
        salt: str,
        choice_count: int,
    ) -> None:
        prompt = prompt[: self.limit - 1]
        choice_count = min(choice_count, self.waiting_max)
        request_id = f"r{self.arrival_count}"
        request = EngineRequest(
            request_id, prompt, sampling, priority, salt, choice_count=choice_count
        )
        if self.core.stats().waiting_requests + choice_count > self.waiting_max:
            with pytest.raises(RateLimited):
                self.core.submit(request)
            return
        self.core.submit(request)
        for index in range(choice_count):
            self.arrival_count += 1
            self.live[request_id, index] = Expectation(
                request, self.model, self.limit, self.arrival_count, index
            )

    @precondition(lambda self: self.live)
    @rule(data=st.data(), during_step=st.booleans())
    def abort(self, data: st.DataObject, during_step: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        self.live[key].aborted = True
        if during_step:
            self.abort_during_step.append(key)
        else:
            self.core.abort(*key)

    @rule(seconds=st.floats(1.0, 40.0))
    def let_waiting_requests_age(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.head_is_known = False

    @rule()
    def abort_unknown(self) -> None:
        self.core.abort("never submitted")

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.core.has_work():
                self.step_once()

    def step_once(self) -> None:
        steps_before = self.runner.steps
        outputs = self.core.step()
        keys = [(output.request_id, output.index) for output in outputs]
        assert len(set(keys)) == len(outputs)
        for key, output in zip(keys, outputs, strict=True):
            self.live[key].take(output)
            if output.finish_reason is not None:
                del self.live[key]
        assert self.runner.steps == steps_before + 1 or not self.live, "live requests, no step"
        self.core.check_invariants()
        if self.draft_model is not None:
            self.draft_model.check_invariants()
        self.check_head()

    def check_head(self) -> None:
        """The oldest of the top class finishes before the work that was there when it became so."""
        head = min(self.live.values(), key=lambda each: each.order, default=None)
        if head is not self.head:
            self.head, self.head_steps = head, 0
            work = sum(each.length_max for each in self.live.values())
            self.head_steps_max = 4 + (1 + preemptions_max) * work
        self.head_steps += 1
        if head is not None and self.head_is_known:
            assert self.head_steps <= self.head_steps_max, "the oldest is held up"

    @invariant()
    def gauges_agree(self) -> None:
        if hasattr(self, "core"):
            stats = self.core.stats()
            assert stats.kv_blocks_used <= stats.kv_blocks_total
            if not self.live:
                self.core.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        steps_max = 10 + sum(each.length_max for each in self.live.values()) * 4
        for _ in range(steps_max):
            if not self.core.has_work():
                break
            self.step_once()
        assert not self.live, "requests never finished"
        stats = self.core.stats()
        assert stats.kv_blocks_used == stats.running_requests == stats.waiting_requests == 0
        assert stats.host_blocks == 0
        if self.draft_model is not None:
            self.draft_model.check_invariants()
            assert self.draft_model.is_idle


SchedulerMachine.TestCase.settings = machine_settings
TestSchedulerMachine = pytest.mark.timeout(600)(SchedulerMachine.TestCase)


def answers(
    requests: list[EngineRequest], *, num_blocks: int, rows_max: int, prefix_cache_key: bytes | None
) -> Iterator[tuple[str, tuple[int, ...], FinishReason | None]]:
    runner = FakeRunner(FakeModel(vocab_size, poison), num_blocks=num_blocks, rows_max=rows_max)
    core = EngineCore(runner, SchedulerConfig(prefix_cache_key), ManualClock())
    for request in requests:
        core.submit(request)
    received: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while core.has_work():
        for output in core.step():
            received[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                tokens = tuple(received[output.request_id])
                yield output.request_id, tokens, output.finish_reason
        core.check_invariants()


@settings(deadline=None, print_blob=True)
@given(
    prompt_list=st.lists(st.one_of(prompts, shared_prompts), min_size=1, max_size=8),
    sampling=samplings,
    num_blocks=st.integers(10, 40),
    rows_max=st.integers(1, 40),
)
def test_cache_on_and_off_give_the_same_tokens(
    prompt_list: list[tuple[int, ...]], sampling: SamplingParams, num_blocks: int, rows_max: int
) -> None:
    requests = [EngineRequest(f"r{i}", prompt, sampling) for i, prompt in enumerate(prompt_list)]
    cold = answers(requests, num_blocks=num_blocks, rows_max=rows_max, prefix_cache_key=None)
    warm = answers(requests, num_blocks=num_blocks, rows_max=rows_max, prefix_cache_key=b"secret")
    assert sorted(cold) == sorted(warm)
