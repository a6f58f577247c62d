"""Our own scheduler, block pool and step loop, over a device that computes nothing but time.

Each step is the real `EngineCore.step`; its outputs are delivered when the device's model says that
the step would have ended. The runner cannot know which request a row belongs to, so the length of
the answer travels in the sampling seed: at that position it gives the stop token.
"""

import numpy as np

from headrace.engine.core import EngineCore
from headrace.engine.request import (
    EngineRequest,
    EngineStats,
    FinishReason,
    RequestOutput,
    SamplingParams,
)
from headrace.engine.runner import RunnerInfo, StepBatch, StepResult
from headrace.engine.scheduler import SchedulerConfig
from headrace.router.prompt_prefix import PromptPrefix
from headrace.sim.fleet.attempt import Attempt, Listener
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.histogram import WeightedTimes
from headrace.sim.fleet.request import Segment, answer_content

stop_token_id = 1
content_token_first = 2
vocab_size = 2**31 - 1
prefix_cache_key = b"simulated fleet "  # repeatable; a real engine draws one


class TimedRunner:
    """A model runner whose steps take no time, and say how long they would have taken."""

    def __init__(self, device: DeviceModel) -> None:
        self.device = device
        self.step_s = 0.0  # of the last step
        self.info = RunnerInfo(
            vocab_size=vocab_size,
            max_model_len=device.max_model_len,
            num_blocks=device.kv_tokens // device.block_size_tokens,
            block_size_tokens=device.block_size_tokens,
            rows_max=device.step_rows,
            sequences_max=device.sequences_max,
            kernel_name="simulated",
        )

    def execute(self, batch: StepBatch) -> StepResult:
        """Take the step's time down; stop tokens where answers end, and tokens elsewhere."""
        rows = np.diff(batch.row_starts)
        contexts = batch.context_lens.astype(np.float64)
        in_chunks = np.where(rows > 1, rows, 0)
        self.step_s = self.device.step_s(
            len(batch.token_ids),
            len(contexts),
            float(contexts.sum()),
            float((in_chunks * (contexts - in_chunks / 2)).sum()),
        )
        ended = batch.position.astype(np.uint64) >= batch.seed
        token_ids = np.where(ended, stop_token_id, answer_content).astype(np.int32)
        return StepResult(token_ids, np.zeros(len(token_ids), np.float32))

    def copy_blocks(self, pairs: object) -> None:
        """There is nothing in the blocks."""

    def export_blocks(self, block_ids: object) -> bytes:
        """There is nothing in the blocks."""
        return b""

    def import_blocks(self, block_ids: object, data: bytes) -> None:
        """There is nothing in the blocks."""

    def close(self) -> None:
        """Nothing is held."""


class ExactEngine:
    """The real engine core, stepped on the virtual clock."""

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
        self._runner = TimedRunner(device)
        config = SchedulerConfig(
            prefix_cache_key if prefix_cache else None,
            step_rows=device.step_rows,
            sequences_max=device.sequences_max,
            waiting_max=device.waiting_max,
        )
        self.core = EngineCore(self._runner, config, loop)
        self._attempts: dict[str, Attempt] = {}
        self._last_token_s: dict[str, float] = {}
        self._seen: set[int] = set()  # prefixes; evictions are not noticed
        self._is_stepping = False
        self._is_halted = False
        self._device = device

    def submit(self, attempt: Attempt) -> None:
        """Queue it; RateLimited if the engine's queue is full."""
        request = attempt.request
        sampling = SamplingParams(
            temperature=0.0,
            seed=request.output_tokens,
            max_tokens=request.max_tokens,
            stop_token_ids=frozenset((stop_token_id,)),
        )
        tenant = str(request.tenant)
        self.core.submit(
            EngineRequest(attempt.key, prompt_tokens(request.segments), sampling, cache_salt=tenant)
        )
        self._attempts[attempt.key] = attempt
        self._wake()

    def abort(self, attempt: Attempt) -> None:
        """Forget it with the next step; nothing more is told of it."""
        if self._attempts.pop(attempt.key, None) is not None:
            self._last_token_s.pop(attempt.key, None)
            self.core.abort(attempt.key)
            self._wake()

    def load(self) -> tuple[int, int]:
        """Requests that run and that wait."""
        stats = self.core.stats()
        return stats.running_requests, stats.waiting_requests

    def known_tokens(self, prefix: PromptPrefix) -> int:
        """Tokens that the last answered prompts share with it: the segments seen here."""
        known = 0
        for key, end in zip(prefix.keys, prefix.tokens, strict=True):
            if key not in self._seen:
                break
            known = end
        return known

    def stats(self) -> EngineStats:
        """The real engine's own counters."""
        return self.core.stats()

    def slow_down(self, factor: float) -> None:
        """Take `factor` times as long as the device's model says, from the next step on."""
        self._runner.device = self._device.slowed(factor)

    def halt(self) -> None:
        """Never do anything again."""
        self._is_halted = True

    def _wake(self) -> None:
        if not self._is_stepping:
            self._is_stepping = True
            self._loop.after(0.0, self._step, None)

    def _step(self, _: None) -> None:
        if self._is_halted:
            return
        self._runner.step_s = 0.0
        outputs = self.core.step()
        self._loop.after(self._runner.step_s, self._deliver, outputs)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        if self._is_halted:
            return
        for output in outputs:
            attempt = self._attempts.get(output.request_id)
            if attempt is not None:
                self._tell(attempt, output)
        if self.core.has_work():
            self._step(None)
        else:
            self._is_stepping = False

    def _tell(self, attempt: Attempt, output: RequestOutput) -> None:
        now_s = self._loop.now_s
        if output.token_ids:
            attempt.produced_tokens = output.usage.completion_tokens
            last_s = self._last_token_s.get(output.request_id)
            self._last_token_s[output.request_id] = now_s
            if last_s is None:
                attempt.cached_tokens = output.usage.cached_tokens
                request = attempt.request
                self._seen.update(request.keys)
                self._listener.first_token(attempt)
            else:
                self._gaps.add(now_s - last_s)
        if output.finish_reason is not None:
            del self._attempts[output.request_id]
            self._last_token_s.pop(output.request_id, None)
            assert output.finish_reason is not FinishReason.ERROR
            self._listener.finished(attempt)


def prompt_tokens(segments: tuple[Segment, ...]) -> tuple[int, ...]:
    """Token ids that are equal where segments are; each segment repeats the id of its content."""
    tokens: tuple[int, ...] = ()
    for content, count in segments:
        token_id = content if content == answer_content else content + content_token_first
        tokens += (token_id % vocab_size,) * count
    return tokens
