"""The step loop's body: requests go in, each step gives their new tokens.

`submit` and `abort` may be called from another thread while `step` runs: they only append to queues
that a step empties. Everything else belongs to the thread that steps.
"""

from collections import deque
from dataclasses import replace
from heapq import heappop, heappush

from headrace.base.clock import Clock
from headrace.base.errors import Conflict, InvalidRequest, RateLimited
from headrace.engine.batch import BatchBuilder
from headrace.engine.drain_rate import DrainRate
from headrace.engine.intake import context_limit, output_limits
from headrace.engine.request import (
    EngineRequest,
    EngineStats,
    FinishReason,
    RequestOutput,
    TokenLogprobs,
)
from headrace.engine.runner import ModelRunner, StepResult
from headrace.engine.scheduler import ScheduledSequence, Scheduler, SchedulerConfig
from headrace.engine.sequence import Sequence, SequenceState

not_finite_token_id = -1  # StepResult.token_ids
all_banned_token_id = -2
all_banned_error = (
    "No token was allowed at this place of the output: grammar, allowed_token_ids, bad_words and "
    "min_tokens together exclude all of them, or the grammar is too complex. Loosen one of them."
)
not_finite_error = (
    "The model's output for this request was not finite; the request failed, others did not. "
    "Send it again; if it fails again, the model file or this prompt is the cause."
)
deadline_error = (
    "The request's deadline passed before its output was complete; allow it more time, or lower "
    "max_tokens."
)


class EngineCore:
    """Continuous batching over one model runner."""

    def __init__(self, runner: ModelRunner, config: SchedulerConfig, clock: Clock) -> None:
        self._runner = runner
        self._info = runner.info
        self._config = config
        self._clock = clock
        self._scheduler = Scheduler(config, runner.info)
        self._builder = BatchBuilder(
            self._scheduler.rows_max,
            self._scheduler.running_max,
            self._scheduler.kv.block_count(context_limit(runner.info)),
            runner.info.vocab_size,
        )
        self._choices: dict[str, list[Sequence]] = {}  # those of a request that have not ended
        self._arrivals: deque[Sequence] = deque()
        self._aborts: deque[tuple[str, int | None]] = deque()
        self._new_deadlines: deque[tuple[float, int, str]] = deque()
        self._deadlines: list[tuple[float, int, str]] = []  # a heap; the number breaks ties
        self._arrival_count = 0
        self._drain_rate = DrainRate()
        self._stats = EngineStats()

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; its first tokens come from one of the next steps.

        Raises InvalidRequest, ContextLengthExceeded, Conflict for an id that is live, RateLimited
        if the queue is full. `max_tokens` is cut to what the context leaves after the prompt."""
        limits = output_limits(request, self._info)
        if request.request_id in self._choices:
            raise Conflict(
                f"Request id {request.request_id} is in use; send a new id for each request.",
                param="request_id",
            )
        self._check_room(len(limits) * request.choice_count)
        now_s = self._clock.monotonic_s()
        choices: list[Sequence] = []
        for max_tokens in limits:
            leader: Sequence | None = None
            for _ in range(request.choice_count):
                self._arrival_count += 1
                sequence = Sequence(
                    request,
                    self._arrival_count,
                    now_s,
                    max_tokens,
                    index=len(choices),
                    leader=leader,
                )
                leader = leader or sequence
                choices.append(sequence)
        self._choices[request.request_id] = choices
        if request.deadline_s is not None:
            due = (request.deadline_s, self._arrival_count, request.request_id)
            self._new_deadlines.append(due)
        self._arrivals.extend(choices)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it, with the next step, which frees what it holds.

        Unknown ids are ignored."""
        self._aborts.append((request_id, index))

    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return bool(self._choices or self._aborts)

    def step(self) -> list[RequestOutput]:
        """Run one step; what it produced, at most one output a choice.

        An abort that arrives while the runner works takes effect in this step."""
        start_s = self._clock.monotonic_s()
        outputs: list[RequestOutput] = []
        self._take_arrivals()
        self._apply_aborts(outputs)
        self._end_overdue(start_s, outputs)
        scheduled = self._scheduler.schedule(start_s)
        run_s = 0.0
        if scheduled:
            self._count_scheduled(scheduled, start_s)
            batch, sampled = self._builder.build(scheduled)
            self._runner.copy_blocks(self._scheduler.kv.take_copies())
            run_start_s = self._clock.monotonic_s()
            result = self._runner.execute(batch)
            run_s = self._clock.monotonic_s() - run_start_s
            self._apply_aborts(outputs)
            self._absorb(scheduled, sampled, result, outputs)
            self._stats.steps_total += 1
        self._stats.step_seconds_total += run_s
        self._stats.scheduler_seconds_total += self._clock.monotonic_s() - start_s - run_s
        return outputs

    def stats(self) -> EngineStats:
        """A snapshot of the counters and gauges."""
        pool = self._scheduler.kv.pool
        return replace(
            self._stats,
            running_requests=len(self._scheduler.running),
            waiting_requests=len(self._scheduler.waiting) + len(self._arrivals),
            kv_blocks_total=pool.num_blocks,
            kv_blocks_used=pool.used_count,
            preemptions_total=self._scheduler.preemption_count,
            finished_total=dict(self._stats.finished_total),
        )

    def check_invariants(self) -> None:
        """Assert what must hold between steps; for tests."""
        self._scheduler.check_invariants()
        arrivals = [s for s in self._arrivals if s.state is SequenceState.WAITING]
        live = [*self._scheduler.waiting, *self._scheduler.running, *arrivals]
        known = [sequence for choices in self._choices.values() for sequence in choices]
        assert sorted(map(id, live)) == sorted(map(id, known)), "a choice is lost or doubled"
        for sequence in live:
            assert sequence.completion_count < max(1, sequence.max_tokens)

    def _check_room(self, count: int) -> None:
        waiting_count = len(self._scheduler.waiting) + len(self._arrivals)
        if count > self._config.waiting_max:
            raise InvalidRequest(
                f"The request asks for {count} outputs; this engine queues "
                f"{self._config.waiting_max} at most. Ask for fewer.",
                param="n",
            )
        if waiting_count + count > self._config.waiting_max:
            retry_after_s = self._drain_rate.retry_after_s(self._clock.monotonic_s())
            raise RateLimited(
                f"The queue is full: {waiting_count} requests wait. Try again in "
                f"{retry_after_s:.1f} s.",
                retry_after_s=retry_after_s,
                waiting_requests=waiting_count,
            )

    def _take_arrivals(self) -> None:
        while self._new_deadlines:
            heappush(self._deadlines, self._new_deadlines.popleft())
        while self._arrivals:
            sequence = self._arrivals.popleft()
            if sequence.state is SequenceState.WAITING:  # not aborted on its way here
                self._scheduler.add(sequence)

    def _apply_aborts(self, outputs: list[RequestOutput]) -> None:
        while self._aborts:
            request_id, index = self._aborts.popleft()
            for sequence in tuple(self._choices.get(request_id, ())):
                if index is None or index == sequence.index:
                    outputs.append(self._finish(sequence, (), FinishReason.ABORT))

    def _end_overdue(self, now_s: float, outputs: list[RequestOutput]) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_s:
            due_s, _, request_id = heappop(self._deadlines)
            for sequence in tuple(self._choices.get(request_id, ())):
                if sequence.request.deadline_s == due_s:  # else the id was used again
                    reason = FinishReason.TIMEOUT
                    outputs.append(self._finish(sequence, (), reason, error=deadline_error))

    def _count_scheduled(self, scheduled: list[ScheduledSequence], now_s: float) -> None:
        """Count prompts when first scheduled, and tokens that are computed again."""
        stats = self._stats
        for sequence, row_count in scheduled:
            if sequence.queue_s is None:
                sequence.start(now_s - sequence.arrival_s)
                if sequence.counts_prompt:
                    stats.prompt_tokens_total += sequence.prompt_count
                    stats.cached_tokens_total += sequence.computed
                self._drain_rate.record(now_s)
            if sequence.computed < sequence.peak_computed:
                again = min(sequence.computed + row_count, sequence.peak_computed)
                stats.recomputed_tokens_total += again - sequence.computed

    def _absorb(
        self,
        scheduled: list[ScheduledSequence],
        sampled: list[Sequence],
        result: StepResult,
        outputs: list[RequestOutput],
    ) -> None:
        """Take in what the runner did; sequences aborted meanwhile are not running any more."""
        token_ids: list[int] = result.token_ids.tolist()
        if token_ids and min(token_ids) < 0:
            self._fail_unsampled(sampled, token_ids, outputs)
        running = SequenceState.RUNNING
        for sequence, row_count in scheduled:
            if sequence.state is running:
                sequence.computed += row_count
                sequence.peak_computed = max(sequence.peak_computed, sequence.computed)
                self._scheduler.kv.commit(sequence)
        for index, (sequence, token_id) in enumerate(zip(sampled, token_ids, strict=True)):
            if sequence.state is running:
                logprobs = _logprobs_of(sequence, result, index)
                outputs.append(self._append_token(sequence, token_id, logprobs))

    def _append_token(
        self, sequence: Sequence, token_id: int, logprobs: tuple[TokenLogprobs, ...]
    ) -> RequestOutput:
        """Give a sequence its next token, and end it if that was the last."""
        may_stop = sequence.completion_count >= sequence.min_tokens
        if may_stop and token_id in sequence.stop_token_ids:
            return self._finish(sequence, (), FinishReason.STOP)
        sequence.tokens.append(token_id)
        self._stats.completion_tokens_total += 1
        if sequence.completion_count >= sequence.max_tokens:
            return self._finish(sequence, (token_id,), FinishReason.LENGTH, logprobs=logprobs)
        return _output(sequence, (token_id,), None, logprobs=logprobs)

    def _fail_unsampled(
        self, sampled: list[Sequence], token_ids: list[int], outputs: list[RequestOutput]
    ) -> None:
        """End the sequences that got no token; not finite KV is shared with nobody."""
        for sequence, token_id in zip(sampled, token_ids, strict=True):
            if token_id == not_finite_token_id and sequence.state is SequenceState.RUNNING:
                self._scheduler.kv.forget(sequence)
                outputs.append(
                    self._finish(sequence, (), FinishReason.ERROR, error=not_finite_error)
                )
            elif token_id == all_banned_token_id and sequence.state is SequenceState.RUNNING:
                outputs.append(
                    self._finish(sequence, (), FinishReason.ERROR, error=all_banned_error)
                )

    def _finish(
        self,
        sequence: Sequence,
        token_ids: tuple[int, ...],
        reason: FinishReason,
        error: str | None = None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> RequestOutput:
        """End a request and free all it holds."""
        output = _output(sequence, token_ids, reason, error, logprobs)
        self._scheduler.remove(sequence)
        choices = self._choices[sequence.request_id]
        choices.remove(sequence)
        if not choices:
            del self._choices[sequence.request_id]
        finished = self._stats.finished_total
        finished[reason.value] = finished.get(reason.value, 0) + 1
        return output


def _output(
    sequence: Sequence,
    token_ids: tuple[int, ...],
    reason: FinishReason | None,
    error: str | None = None,
    logprobs: tuple[TokenLogprobs, ...] = (),
) -> RequestOutput:
    return RequestOutput(
        sequence.request_id,
        token_ids,
        reason,
        sequence.usage,
        error,
        sequence.queue_s,
        logprobs,
        sequence.index,
        sequence.cumulative_logprob,
    )


def _logprobs_of(sequence: Sequence, result: StepResult, index: int) -> tuple[TokenLogprobs, ...]:
    """The log-probabilities of one sample if its request asked for them."""
    count = sequence.request.sampling.top_logprobs
    if count is None:
        return ()
    top: tuple[tuple[int, float], ...] = ()
    if count and result.top_ids is not None and result.top_logprobs is not None:
        ids = result.top_ids[index, :count].tolist()
        top = tuple(zip(ids, result.top_logprobs[index, :count].tolist(), strict=True))
    return (TokenLogprobs(float(result.logprobs[index]), top),)
