"""An engine over the fake runner, with a record of every batch it ran."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from headrace.engine.core import EngineCore
from headrace.engine.kv_parcel import KvParcel
from headrace.engine.request import EngineRequest, FinishReason, RequestOutput, SamplingParams
from headrace.engine.runner import StepBatch
from headrace.engine.scheduler import SchedulerConfig
from headrace.kernels import _native
from headrace.sim.clock import ManualClock
from headrace.sim.runner import FakeModel, FakeRunner

isa_names = {
    "portable": "portable",
    "avx2": "avx2",
    "avxvnni": "avx-vnni",
    "avx512": "avx512-vnni",
}


class Harness:
    """Submits by short calls, steps, checks invariants and remembers what came out."""

    def __init__(
        self,
        *,
        model: FakeModel,
        num_blocks: int,
        max_model_len: int,
        rows_max: int,
        sequences_max: int,
        caching: bool,
        waiting_max: int,
        running_max: int,
        **config_fields: Any,
    ) -> None:
        self.model = model
        self.clock = ManualClock()
        self.row_counts: list[list[int]] = []  # of each step, by sequence
        self.during_step: Callable[[], None] | None = None
        self.runner = FakeRunner(
            model,
            num_blocks=num_blocks,
            block_size_tokens=4,
            max_model_len=max_model_len,
            rows_max=rows_max,
            sequences_max=sequences_max,
            during_step=self._record,
        )
        proposer = config_fields.pop("proposer", None)
        config = SchedulerConfig(
            b"k" * 32 if caching else None,
            sequences_max=running_max,
            waiting_max=waiting_max,
            **config_fields,
        )
        self.core = EngineCore(self.runner, config, self.clock, proposer)
        self.requests: dict[str, EngineRequest] = {}
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, RequestOutput] = {}
        self.finish_order: list[str] = []

    def submit(
        self,
        request_id: str,
        prompt: int | tuple[int, ...],
        *,
        priority: int = 0,
        salt: str = "",
        sampling: SamplingParams | None = None,
        max_tokens: int = 8,
        parcel: KvParcel | None = None,
        **fields: Any,
    ) -> None:
        if isinstance(prompt, int):  # a prompt of that length that shares nothing with others
            start = 100 * (len(self.requests) + 1)
            prompt = tuple(range(start, start + prompt))
        sampling = sampling or SamplingParams(temperature=0, max_tokens=max_tokens)
        request = EngineRequest(request_id, prompt, sampling, priority, salt, **fields)
        self.core.submit(request, parcel)
        self.requests[request_id] = request
        self.tokens[request_id] = []
        for index in range(1, len(request.prompts) * request.choice_count):
            self.tokens[f"{request_id}#{index}"] = []

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for output in self.core.step():
                name = output.request_id + (f"#{output.index}" if output.index else "")
                self.tokens[name] += output.token_ids
                self.last[name] = output
                if output.finish_reason is not None:
                    self.finish_order.append(name)
            self.core.check_invariants()

    def run(self) -> None:
        self.step_until(lambda: not self.core.has_work())

    def step_until(self, holds: Callable[[], bool]) -> None:
        for _ in range(2000):
            if holds():
                return
            self.step()
        raise AssertionError("the engine did not get there")

    def reason(self, request_id: str) -> FinishReason | None:
        return self.last[request_id].finish_reason if request_id in self.last else None

    def expected(self, request_id: str) -> list[int]:
        """The tokens of a choice, named as `tokens` does, by the model alone."""
        request_id, _, index = request_id.partition("#")
        request = self.requests[request_id]
        prompt, nth = divmod(int(index or 0), request.choice_count)
        sampling = replace(request.sampling, seed=request.sampling.seed + nth)
        limit = self.runner.info.max_model_len
        return self.model.generate(request.prompts[prompt], sampling, limit)[0]

    def _record(self, batch: StepBatch) -> None:
        starts = batch.row_starts.tolist()
        self.row_counts.append([b - a for a, b in pairwise(starts)])
        if self.during_step is not None:
            self.during_step()


MakeEngine = Callable[..., Harness]


@pytest.fixture
def make_engine() -> MakeEngine:
    def make(
        *,
        model: FakeModel | None = None,
        num_blocks: int = 64,
        max_model_len: int = 128,
        rows_max: int = 64,
        sequences_max: int = 16,
        caching: bool = True,
        waiting_max: int = 64,
        running_max: int = 128,
        **config_fields: Any,
    ) -> Harness:
        return Harness(
            model=model or FakeModel(10_000),
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            rows_max=rows_max,
            sequences_max=sequences_max,
            caching=caching,
            waiting_max=waiting_max,
            running_max=running_max,
            **config_fields,
        )

    return make


@pytest.fixture(params=list(isa_names))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test with each instruction set that this CPU has."""
    name: str = request.param
    if _native.kernel_name(name) != isa_names[name]:
        pytest.skip(f"this CPU does not run {name}")
    monkeypatch.setenv("HEADRACE_CPU_ISA", name)
    return name
