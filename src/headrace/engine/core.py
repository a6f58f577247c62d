"""The step loop's body: requests go in, each step gives their new tokens.

`submit` and `abort` may be called from another thread while `step` runs: they only append to queues
that a step empties. Everything else belongs to the thread that steps.
"""

from collections import deque
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from headrace.base.clock import Clock
from headrace.base.errors import Conflict, InvalidRequest, RateLimited
from headrace.engine.bandwidth import Bandwidth
from headrace.engine.batch import BatchBuilder, Sampled
from headrace.engine.block_pool import CacheChange
from headrace.engine.drain_rate import DrainRate
from headrace.engine.host_store import HostStore
from headrace.engine.intake import context_limit, output_limits
from headrace.engine.kv_parcel import KvParcel
from headrace.engine.kv_transfer import KvPort
from headrace.engine.ngram_proposer import NgramProposer
from headrace.engine.request import (
    EngineRequest,
    EngineStats,
    FinishReason,
    RequestOutput,
    TokenLogprobs,
)
from headrace.engine.runner import DiscardingRunner, ModelRunner, StepResult
from headrace.engine.samples import StepSamples, Taken, all_banned_error, not_finite_error
from headrace.engine.scheduler import ScheduledSequence, Scheduler, SchedulerConfig
from headrace.engine.sequence import Sequence, SequenceState
from headrace.engine.speculation import Proposer
from headrace.engine.waiting_counts import waiting_by_class, waiting_by_reason

deadline_error = (
    "The request's deadline passed before its output was complete; allow it more time, or lower "
    "max_tokens."
)


class EngineCore:
    """Continuous batching over one model runner."""

    def __init__(
        self,
        runner: ModelRunner,
        config: SchedulerConfig,
        clock: Clock,
        proposer: Proposer | None = None,
    ) -> None:
        """With `draft_tokens_max` in the config, `proposer` guesses; by default from n-grams.

        A draft model is one (`draft_model.py`)."""
        self._runner = runner
        self._info = runner.info
        self._config = config
        self._clock = clock
        self._scheduler = Scheduler(config, runner.info, proposer or NgramProposer(), clock)
        if config.host_blocks_max or config.kv_fingerprint is not None:
            step_time = self._scheduler.step_time
            self._scheduler.host = HostStore(runner, clock, step_time, config.host_blocks_max)
        self._port = KvPort(runner, self._scheduler, config.kv_fingerprint)
        self._parcels: dict[Sequence, KvParcel] = {}  # of arrivals
        self._builder = BatchBuilder(
            self._scheduler.rows_max,
            self._scheduler.running_max,
            self._scheduler.parts_max,
            self._scheduler.kv.block_count(context_limit(runner.info)),
            runner.info.vocab_size,
        )
        self._choices: dict[str, list[Sequence]] = {}  # those of a request that have not ended
        self._arrivals: deque[Sequence] = deque()
        self._aborts: deque[tuple[str, int | None]] = deque()
        self._resets: deque[str | None] = deque()
        self._discards_kv = False
        self._new_deadlines: deque[tuple[float, int, str]] = deque()
        self._deadlines: list[tuple[float, int, str]] = []  # a heap; the number breaks ties
        self._arrival_count = 0
        self._drain_rate = DrainRate()
        self._bandwidth = Bandwidth(runner.info)
        self._stats = EngineStats()

    def submit(self, request: EngineRequest, parcel: KvParcel | None = None) -> None:
        """Queue a request; its first tokens come from one of the next steps.

        Raises InvalidRequest, ContextLengthExceeded, Conflict for an id that is live, RateLimited
        if the queue is full. `max_tokens` is cut to what the context leaves after the prompt.
        `parcel` is the first prompt's KV that another engine computed; what does not fit the
        request is counted, and computed here."""
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
        if parcel is not None:
            self._parcels[choices[0]] = parcel
        if request.deadline_s is not None:
            due = (request.deadline_s, self._arrival_count, request.request_id)
            self._new_deadlines.append(due)
        self._arrivals.extend(choices)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it, with the next step, which frees what it holds.

        Unknown ids are ignored."""
        self._aborts.append((request_id, index))

    def reset_cache(self, salt: str | None) -> None:
        """Forget with the next step what a tenant's prompts left in the cache; None: everyone's.

        Running requests keep their blocks."""
        self._resets.append(salt)

    def discard_kv(self) -> None:
        """Give the memory of all KV back as soon as no request runs; the next one takes it again.

        Only a runner that can is asked (`DiscardingRunner`); the cache is forgotten anyway."""
        self._discards_kv = True

    def adapters_in_use(self) -> set[int]:
        """The slots that requests which have not ended name; nobody may submit meanwhile."""
        adapters = (choices[0].request.adapter for choices in tuple(self._choices.values()))
        return {adapter.slot for adapter in adapters if adapter is not None}

    def record_cache_changes(self) -> None:
        """Keep what becomes findable in the cache, and what no more, for `take_cache_changes`."""
        self._scheduler.kv.pool.changes = []

    def take_cache_changes(self) -> list[CacheChange]:
        """The changes since the last call, in their order; empty if nobody wants them kept."""
        changes = self._scheduler.kv.pool.changes
        if not changes:
            return []
        self._scheduler.kv.pool.changes = []
        return changes

    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return bool(self._choices or self._aborts or self._resets or self._discards_kv)

    def step(self) -> list[RequestOutput]:
        """Run one step; what it produced, at most one output a choice.

        Blocks that are held when no request is left are counted and taken back, not died of.
        An abort that arrives while the runner works takes effect in this step."""
        start_s = self._clock.monotonic_s()
        outputs: list[RequestOutput] = []
        self._take_arrivals()
        self._apply_aborts(outputs)
        self._apply_resets()
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
            self._scheduler.record_step(len(batch.token_ids), run_s)
            if self._scheduler.only_decodes:
                self._bandwidth.record(int(np.add.reduce(batch.context_lens)), run_s)
            self._apply_aborts(outputs)
            self._absorb(scheduled, sampled, result, outputs)
            self._stats.steps_total += 1
        step_s = self._clock.monotonic_s() - start_s
        self._scheduler.end_step(step_s)
        self._stats.step_seconds_total += run_s
        self._stats.scheduler_seconds_total += step_s - run_s
        if not self._choices and self._scheduler.kv.pool.used_count:
            self._stats.leaked_blocks_total += self._scheduler.kv.pool.reclaim()
        return outputs

    def stats(self) -> EngineStats:
        """A snapshot of the counters and gauges."""
        pool, speculator = self._scheduler.kv.pool, self._scheduler.speculator
        host = self._scheduler.host
        return replace(
            self._stats,
            running_requests=len(self._scheduler.running),
            waiting_requests=len(self._scheduler.waiting) + len(self._arrivals),
            kv_blocks_total=pool.num_blocks,
            kv_blocks_used=pool.used_count,
            preemptions_total=self._scheduler.preemption_count,
            host_blocks=0 if host is None else host.block_count,
            saved_tokens_total=0 if host is None else host.saved_tokens_total,
            restored_tokens_total=0 if host is None else host.restored_tokens_total,
            imported_tokens_total=0 if host is None else host.imported_tokens_total,
            exported_tokens_total=self._port.exported_tokens_total,
            kv_transfers=dict(self._port.results),
            waiting_by_reason=waiting_by_reason(self._scheduler, len(self._arrivals)),
            waiting_by_class=waiting_by_class(self._scheduler),
            achieved_bytes_per_s=self._bandwidth.bytes_per_s,
            finished_total=dict(self._stats.finished_total),
            drafts_total=0 if speculator is None else speculator.drafts_total,
            draft_seconds_total=0.0 if speculator is None else speculator.seconds_total,
            drafted_by_position=() if speculator is None else tuple(speculator.drafted),
            accepted_by_position=() if speculator is None else tuple(speculator.accepted),
        )

    def check_invariants(self) -> None:
        """Assert what must hold between steps; for tests."""
        self._scheduler.check_invariants()
        assert not self._stats.leaked_blocks_total, "blocks were held though no request was left"
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
            parcel = self._parcels.pop(sequence, None) if self._parcels else None
            if sequence.state is SequenceState.WAITING:  # not aborted on its way here
                self._scheduler.add(sequence)
                if parcel is not None:
                    self._port.adopt(sequence, parcel)

    def _apply_aborts(self, outputs: list[RequestOutput]) -> None:
        while self._aborts:
            request_id, index = self._aborts.popleft()
            for sequence in tuple(self._choices.get(request_id, ())):
                if index is None or index == sequence.index:
                    outputs.append(self._finish(sequence, FinishReason.ABORT))

    def _apply_resets(self) -> None:
        pool = self._scheduler.kv.pool
        while self._resets:
            salt = self._resets.popleft()
            if salt is None:
                pool.forget_all()
            else:
                pool.forget_owner(salt)
        if self._discards_kv and not self._choices:
            self._discards_kv = False
            pool.forget_all()
            if isinstance(self._runner, DiscardingRunner):
                self._runner.discard_kv()

    def _end_overdue(self, now_s: float, outputs: list[RequestOutput]) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_s:
            due_s, _, request_id = heappop(self._deadlines)
            for sequence in tuple(self._choices.get(request_id, ())):
                if sequence.request.deadline_s == due_s:  # else the id was used again
                    outputs.append(self._finish(sequence, FinishReason.TIMEOUT, deadline_error))

    def _count_scheduled(self, scheduled: list[ScheduledSequence], now_s: float) -> None:
        """Count prompts when first scheduled, and tokens that are computed again."""
        stats = self._stats
        for sequence, row_count in scheduled:
            if sequence.queue_s is None:
                hit_tokens = sequence.committed_blocks * self._info.block_size_tokens
                sequence.start(now_s - sequence.arrival_s, hit_tokens)
                if sequence.counts_prompt:
                    stats.prompt_tokens_total += sequence.prompt_count
                    stats.cached_tokens_total += sequence.cached_tokens
                self._drain_rate.record(now_s)
            if sequence.computed < sequence.peak_computed:
                again = min(sequence.computed + row_count, sequence.peak_computed)
                stats.recomputed_tokens_total += again - sequence.computed

    def _absorb(
        self,
        scheduled: list[ScheduledSequence],
        sampled: list[Sampled],
        result: StepResult,
        outputs: list[RequestOutput],
    ) -> None:
        """Take in what the runner did; sequences aborted meanwhile are not running any more."""
        running = SequenceState.RUNNING
        for sequence, row_count in scheduled:
            if sequence.state is running:
                sequence.computed += row_count
                sequence.peak_computed = max(sequence.peak_computed, sequence.computed)
                self._scheduler.kv.commit(sequence)
        samples = StepSamples(result)
        row = 0
        for sequence, prompt_rows, token_rows in sampled:
            if sequence.state is not running:
                pass
            elif prompt_rows and not samples.add_prompt_logprobs(sequence, row, prompt_rows):
                self._scheduler.kv.forget(sequence)
                outputs.append(self._finish(sequence, FinishReason.ERROR, not_finite_error))
            elif token_rows:
                self._take_tokens(sequence, samples.take(sequence, row + prompt_rows), outputs)
            row += prompt_rows + token_rows

    def _take_tokens(self, sequence: Sequence, taken: Taken, outputs: list[RequestOutput]) -> None:
        """Report the tokens that a sequence got, and end it if one of them was the last."""
        self._stats.completion_tokens_total += len(taken.token_ids)
        if sequence.drafts and self._scheduler.speculator is not None:
            self._scheduler.speculator.record_drafts(sequence, taken.accepted)
        noted, sequence.prompt_logprobs = sequence.prompt_logprobs, None
        output = _output(sequence, taken, noted)
        if taken.error == not_finite_error:
            self._scheduler.kv.forget(sequence)
        if taken.reason is not None:
            if taken.error is None and sequence.request.hands_over:
                output = replace(output, parcel=self._port.export(sequence))
            self._remove(sequence, taken.reason)
        outputs.append(output)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: str | None = None,
    ) -> RequestOutput:
        """End a sequence that got nothing in this step, and free all it holds."""
        output = _output(sequence, Taken((), (), 0, reason, error), None)
        self._remove(sequence, reason)
        return output

    def _remove(self, sequence: Sequence, reason: FinishReason) -> None:
        self._scheduler.remove(sequence)
        choices = self._choices[sequence.request_id]
        choices.remove(sequence)
        if not choices:
            del self._choices[sequence.request_id]
        finished = self._stats.finished_total
        finished[reason.value] = finished.get(reason.value, 0) + 1


def _output(
    sequence: Sequence, taken: Taken, prompt_logprobs: list[TokenLogprobs] | None
) -> RequestOutput:
    return RequestOutput(
        sequence.request_id,
        taken.token_ids,
        taken.reason,
        sequence.usage,
        taken.error,
        sequence.queue_s,
        taken.logprobs,
        sequence.index,
        sequence.cumulative_logprob,
        taken.error == all_banned_error,
        tuple(prompt_logprobs) if prompt_logprobs else (),
    )
