"""The same engine without its steps: jumps from one change of the batch to the next.

Between two changes (a request comes in, its prompt is done, it ends) a step differs from the one
before only by a token more for each sequence, so n steps take

    n x first + n (n - 1) / 2 x growth

and one event does for all of them. What is kept of the real scheduler: chunks in order of arrival
in what decoding leaves of a step's rows; admission of whole prompts with a learnt reserve for
growth; prefix hits, and waiting while another computes the same prefix; preemption of the youngest.
What is left out: blocks (tokens are counted), priorities, and partly filled steps among full ones.
How close it is to the exact one is tested (`test_engine_models.py`) and told in the docs.
"""

import heapq
import math
from collections import deque
from itertools import pairwise

import msgspec

from headrace.base.errors import Conflict, ContextLengthExceeded, RateLimited
from headrace.engine.growth import (
    growth_tokens_max,
    share_decay,
    share_max,
    share_min,
    share_raise,
    share_start,
)
from headrace.engine.scheduler import deferred_max
from headrace.router.prompt_prefix import PromptPrefix
from headrace.sim.fleet.attempt import Attempt, Listener, answer_key
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.histogram import WeightedTimes
from headrace.sim.fleet.prefix_cache import SegmentCache


class Entry(msgspec.Struct, eq=False):
    """One attempt inside the engine."""

    attempt: Attempt
    keys: tuple[int, ...]
    sizes: list[int]
    order: int
    outlook_tokens: int  # that it may still make, bounded as the real estimate bounds them
    total_tokens: int  # prompt, and output so far when it is computed again
    computed_tokens: int = 0
    produced_before: int = 0  # when it last began to decode
    start_step: int = -1  # the step that gave the first token since then; -1: not decoding
    is_gone: bool = False

    def produced(self, step: int) -> int:
        """Tokens out by the end of `step`; the step after the last token finds the end."""
        if self.start_step < 0:
            return self.produced_before
        made = self.produced_before + step - self.start_step + 1
        return min(made, self.attempt.request.output_tokens)


class Span(msgspec.Struct, eq=False):
    """Steps that go on without a change."""

    start_s: float
    steps: int
    first_s: float  # time of the first step
    growth_s: float  # what each step takes longer than the one before
    prefill_rows: int  # of each step
    duration_s: float = 0.0  # of all its steps
    cut: bool = False  # it ends with the step that runs now

    def seconds(self, steps: int) -> float:
        """The time of the first `steps` of it."""
        return steps * self.first_s + steps * (steps - 1) / 2 * self.growth_s

    def steps_begun(self, elapsed_s: float) -> int:
        """How many of its steps have begun after `elapsed_s`; at least 1."""
        if self.growth_s <= 0:
            done = elapsed_s / self.first_s
        else:
            linear = self.first_s - self.growth_s / 2
            root = math.sqrt(linear * linear + 2 * self.growth_s * elapsed_s)
            done = (root - linear) / self.growth_s
        begun = int(done + 1e-9) + 1
        return begun if begun < self.steps else self.steps


class AggregateEngine:
    """Continuous batching in a few events a request."""

    def __init__(
        self,
        loop: Loop,
        device: DeviceModel,
        listener: Listener,
        gaps: WeightedTimes,
        *,
        prefix_cache: bool = True,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._gaps = gaps
        self._base_device = self._device = device
        self._running_max = min(device.sequences_max, device.step_rows)
        self._prefix_cache = prefix_cache
        self.cache = SegmentCache(device.kv_tokens, keeps_content=prefix_cache)
        self._entries: dict[Attempt, Entry] = {}
        self._waiting: deque[Entry] = deque()
        self._prefilling: deque[Entry] = deque()
        self._prefill_tokens_left = 0
        self._promised: dict[int, Entry] = {}
        self._decoding: list[tuple[int, int, Entry]] = []  # a heap by the step that finds the end
        self._decoding_count = 0
        self._decoding_context = 0  # KV tokens of all that decode
        self._outlook_tokens = 0  # what running ones may still grow, roughly
        self._growth_share = share_start
        self._leaving: list[Entry] = []
        self._order = 0
        self._step = 0  # of the engine's life
        self._span: Span | None = None
        self._version = 0
        self.preemption_count = 0

    def submit(self, attempt: Attempt) -> None:
        """Queue it; RateLimited if the engine's queue is full."""
        if attempt in self._entries:
            raise Conflict(f"request id {attempt.key} is in use", param="request_id")
        if len(self._waiting) >= self._device.waiting_max:
            raise RateLimited("the engine's queue is full")
        request = attempt.request
        limit = min(self._device.max_model_len, self._device.kv_tokens)
        if request.prompt_tokens + request.output_tokens >= limit:
            raise ContextLengthExceeded(f"the context holds {limit} tokens", prompt_tokens=limit)
        self._order += 1
        sizes = [tokens for _, tokens in request.segments]
        outlook = min(growth_tokens_max, request.max_tokens)
        entry = Entry(attempt, request.keys, sizes, self._order, outlook, request.prompt_tokens)
        self._entries[attempt] = entry
        self._waiting.append(entry)
        if self._span is None or (
            self._prefill_tokens_left <= self._device.step_rows
            and self._running_count < self._running_max
        ):
            self._interrupt()

    def abort(self, attempt: Attempt) -> None:
        """Forget it with the next step; nothing more is told of it."""
        entry = self._entries.pop(attempt, None)
        if entry is not None:
            entry.is_gone = True
            self._leaving.append(entry)
            self._interrupt()

    def load(self) -> tuple[int, int]:
        """Requests that run and that wait."""
        return self._running_count, len(self._waiting)

    def known_tokens(self, prefix: PromptPrefix) -> int:
        """Tokens of the prompt whose KV it has, or is computing."""
        sizes = [end - start for start, end in pairwise((0, *prefix.tokens))]
        return self.cache.match(list(prefix.keys), sizes)[0]

    def slow_down(self, factor: float) -> None:
        """Take `factor` times as long as the device's model says, from the next step on."""
        self._device = self._base_device.slowed(factor)
        self._interrupt()

    def halt(self) -> None:
        """Never do anything again."""
        self._version = -1

    @property
    def _running_count(self) -> int:
        return self._decoding_count + len(self._prefilling)

    def _interrupt(self) -> None:
        """Let the span end with the step that runs, so that the next one sees what changed."""
        if self._version < 0:
            return
        span = self._span
        if span is None:
            self._version += 1
            self._span = Span(self._loop.now_s, 0, 0.0, 0.0, 0, 0.0, True)
            if self._loop.is_last_of_moment:
                self._end_span(self._version)
            else:  # what else comes at this time belongs to the same step
                self._loop.after(0.0, self._end_span, self._version)
        elif not span.cut:
            span.cut = True
            steps = span.steps_begun(self._loop.now_s - span.start_s)
            if steps < span.steps:
                span.steps = steps
                span.duration_s = span.seconds(steps)
                self._version += 1
                end_s = max(self._loop.now_s, span.start_s + span.duration_s)
                self._loop.at(end_s, self._end_span, self._version)

    def _end_span(self, version: int) -> None:
        """Account for a span's steps, tell what they gave, and begin the next span."""
        if version != self._version:
            return
        span = self._span
        assert span is not None
        if span.steps:
            self._absorb(span)
        while self._leaving:
            self._leave(self._leaving.pop())
        if self._version < 0:
            return  # halted by somebody who was told
        if self._waiting:
            self._admit()
        self._begin_span()

    def _absorb(self, span: Span) -> None:
        steps = span.steps
        self._step += steps
        decoding = self._decoding_count
        if decoding:
            tokens = steps * decoding
            self._gaps.add(span.duration_s / steps, tokens)
            self._decoding_context += tokens
            self.cache.grow(tokens)
        if self._decoding and self._decoding[0][0] <= self._step:
            self._end_decodes()
        if span.prefill_rows:
            self._advance_prefill(steps * span.prefill_rows)
        if self._growth_share > share_min:
            self._growth_share = max(share_min, self._growth_share * share_decay**steps)

    def _end_decodes(self) -> None:
        while self._decoding and self._decoding[0][0] <= self._step:
            _, _, entry = heapq.heappop(self._decoding)
            if entry.is_gone or entry.start_step < 0:
                continue
            attempt = entry.attempt
            request = attempt.request
            attempt.produced_tokens = request.output_tokens
            self._stop_decoding(entry)
            if self._prefix_cache:
                self.cache.keep(answer_key(entry.keys, attempt), request.output_tokens)
            self.cache.release(entry.keys, request.prompt_tokens)
            del self._entries[attempt]
            self._listener.finished(attempt)

    def _stop_decoding(self, entry: Entry) -> None:
        """Take a sequence out of the sums; its output's KV is free."""
        grown = self._step - entry.start_step
        self._decoding_count -= 1
        self._decoding_context -= entry.total_tokens + grown
        self.cache.grow(-(entry.total_tokens - entry.attempt.request.prompt_tokens + grown))
        self._outlook_tokens -= entry.outlook_tokens
        entry.produced_before = entry.produced(self._step)
        entry.start_step = -1

    def _advance_prefill(self, rows: int) -> None:
        while rows and self._prefilling:
            entry = self._prefilling[0]
            wanted = entry.total_tokens - entry.computed_tokens
            taken = wanted if wanted < rows else rows
            rows -= taken
            entry.computed_tokens += taken
            self._prefill_tokens_left -= taken
            if taken == wanted:
                self._prefilling.popleft()
                self._withdraw(entry)
                self._start_decoding(entry)

    def _start_decoding(self, entry: Entry) -> None:
        entry.start_step = self._step
        self._decoding_count += 1
        self._decoding_context += entry.total_tokens
        request = entry.attempt.request
        # One that was preempted with only its end to find still takes a step for it.
        left = request.output_tokens - entry.produced_before
        end_step = self._step + (left if left > 1 else 1)
        heapq.heappush(self._decoding, (end_step, entry.order, entry))
        if not entry.is_gone and entry.produced_before == 0:
            entry.attempt.produced_tokens = 1
            self._listener.first_token(entry.attempt)

    def _leave(self, entry: Entry) -> None:
        """Take an aborted request out, wherever it is."""
        if entry.start_step >= 0:
            self._stop_decoding(entry)
            self.cache.release(entry.keys, entry.attempt.request.prompt_tokens)
        elif entry in self._prefilling:
            self._prefilling.remove(entry)
            self._prefill_tokens_left -= entry.total_tokens - entry.computed_tokens
            self._outlook_tokens -= entry.outlook_tokens
            self._withdraw(entry)
            self.cache.grow(-entry.produced_before)
            self.cache.release(entry.keys, entry.computed_tokens)
        else:
            self._waiting.remove(entry)

    def _withdraw(self, entry: Entry) -> None:
        for key in entry.keys:
            if self._promised.get(key) is entry:
                del self._promised[key]

    def _admit(self) -> None:
        passed_over: list[Entry] = []
        rows = self._device.step_rows - self._decoding_count
        while self._waiting and self._running_count < self._running_max:
            if self._prefill_tokens_left >= rows or len(passed_over) == deferred_max:
                break
            entry = self._waiting[0]
            known, held, complete = self.cache.match(entry.keys, entry.sizes)
            if complete < len(entry.keys) and entry.keys[complete] in self._promised:
                passed_over.append(self._waiting.popleft())
                continue
            needed = entry.total_tokens - held + self._device.block_size_tokens // 2
            reserve = 0
            if self._running_count:
                reserve = int(self._growth_share * (self._outlook_tokens + entry.outlook_tokens))
            if needed + reserve > self.cache.free_tokens:
                break
            self._waiting.popleft()
            self._start_prefill(entry, known)
        self._waiting.extendleft(reversed(passed_over))

    def _start_prefill(self, entry: Entry, known_tokens: int) -> None:
        block = self._device.block_size_tokens
        entry.computed_tokens = min(known_tokens, entry.total_tokens - 1) // block * block
        if entry.produced_before == 0:
            entry.attempt.cached_tokens = entry.computed_tokens
        self.cache.hold(entry.keys, entry.sizes)
        self.cache.grow(entry.produced_before)
        for key in entry.keys if self._prefix_cache else ():
            self._promised.setdefault(key, entry)
        self._prefilling.append(entry)
        self._prefill_tokens_left += entry.total_tokens - entry.computed_tokens
        self._outlook_tokens += entry.outlook_tokens

    def _begin_span(self) -> None:
        self._version += 1
        if not self._running_count:
            self._span = None
            assert not self._waiting, "a request fits alone, or is refused before"
            return
        while self._decoding_count > self.cache.free_tokens and self._running_count > 1:
            self._preempt_youngest()
        device, decoding = self._device, self._decoding_count
        steps = self._decoding[0][0] - self._step if self._decoding else 1 << 40
        if decoding and (fitting := self.cache.free_tokens // decoding) < steps:
            steps = max(1, fitting)
        prefill_rows = min(device.step_rows - decoding, self._prefill_tokens_left)
        context, pairs, growth_s = float(self._decoding_context + decoding), 0.0, 0.0
        sequences = decoding
        if prefill_rows:
            head = self._prefilling[0]
            done = head.computed_tokens
            wanted = head.total_tokens - done
            if (whole := wanted // prefill_rows) < steps:
                steps = max(1, whole)
            chunk = min(prefill_rows, wanted)
            context += done + prefill_rows
            pairs = chunk * (done + chunk / 2)
            growth_s = chunk * (device.context_token_s + chunk * device.pair_s)
            sequences += max(1, min(len(self._prefilling), prefill_rows // max(1, wanted)))
        first_s = device.step_s(decoding + prefill_rows, sequences, context, pairs)
        growth_s += decoding * device.context_token_s
        span = Span(self._loop.now_s, steps, first_s, growth_s, prefill_rows)
        span.duration_s = span.seconds(steps)
        self._span = span
        self._loop.after(span.duration_s, self._end_span, self._version)

    def _preempt_youngest(self) -> None:
        """Give a running request's KV to the others; it is computed again, its output too."""
        self.preemption_count += 1
        self._growth_share = min(share_max, self._growth_share + share_raise)
        if self._prefilling:
            entry = self._prefilling.pop()
            self._prefill_tokens_left -= entry.total_tokens - entry.computed_tokens
            self._outlook_tokens -= entry.outlook_tokens
            self._withdraw(entry)
            self.cache.grow(-entry.produced_before)
        else:
            entry = max((item[2] for item in self._decoding if item[2].start_step >= 0), key=age)
            self._decoding = [item for item in self._decoding if item[2] is not entry]
            heapq.heapify(self._decoding)
            self._stop_decoding(entry)
            entry.computed_tokens = entry.attempt.request.prompt_tokens
        self.cache.release(entry.keys, entry.computed_tokens)
        entry.computed_tokens = 0
        entry.total_tokens = entry.attempt.request.prompt_tokens + entry.produced_before
        self._waiting.appendleft(entry)


def age(entry: Entry) -> int:
    """What the youngest has most of."""
    return entry.order
