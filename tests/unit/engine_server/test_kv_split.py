"""The compiled runner: a request's answer is the same, to the bit, whether its prompt came over."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.engine.core import EngineCore
from headrace.engine.cpu_runner import CpuRunner, KvCacheType
from headrace.engine.kv_parcel import KvParcel
from headrace.engine.kv_transfer import KvLayout
from headrace.engine.request import EngineRequest, RequestOutput, SamplingParams
from headrace.engine.runner import ActivationBits
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine_server.kv_exchange import make_fingerprint
from headrace.engine_server.kv_fetch import Budget, KvFetcher
from headrace.engine_server.kv_lease import LeaseStore
from headrace.engine_server.kv_server import KvServer
from headrace.engine_server.messages import KvSource
from headrace.sim.small_model import base_spec, runner_of, small_model, tokens_of
from headrace.weights.tensor import Tensor

clock = SystemClock()
activation_choices: tuple[ActivationBits, ...] = (8, 16)
key = b"k" * 32
prompt = tuple(int(token) for token in tokens_of(77, seed=5))


class OddTokens:
    """A constraint that allows odd tokens alone."""

    def mask_after(self, _output: Sequence[int]) -> NDArray[np.uint32]:
        return np.full(-(-base_spec.vocab_size // 32), 0xAAAAAAAA, np.uint32)

    def allowed_count(self, _output: Sequence[int], guesses: Sequence[int]) -> int:
        return next((i for i, token in enumerate(guesses) if token % 2 == 0), len(guesses))

    def forced_after(self, _output: Sequence[int], _count: int) -> list[int]:
        return []

    def fresh(self) -> "OddTokens":
        return self


def core_of(runner: CpuRunner) -> tuple[EngineCore, bytes]:
    config = SchedulerConfig(key, step_rows=32, draft_tokens_max=4)
    fingerprint = make_fingerprint(runner, config, clock)
    return EngineCore(runner, replace(config, kv_fingerprint=fingerprint), clock), fingerprint


def outputs_of(
    core: EngineCore, request: EngineRequest, parcel: KvParcel | None = None
) -> list[RequestOutput]:
    core.submit(request, parcel)
    outputs = []
    while core.has_work():
        outputs += core.step()
    return outputs


def told(outputs: list[RequestOutput]) -> list[Any]:
    """All that a caller gets, whatever steps it came in."""
    return [
        [token for output in outputs for token in output.token_ids],
        [each for output in outputs for each in output.logprobs],
        outputs[-1].cumulative_logprob,
        outputs[-1].finish_reason,
    ]


def carried(parcel: KvParcel, runner: CpuRunner, fingerprint: bytes, *, is_local: bool) -> KvParcel:
    """The parcel after its way through a lease and a socket."""
    store = LeaseStore(10_000_000, 30.0, clock)
    server = KvServer(store, key, fingerprint, clock, host="127.0.0.1", port=0)
    server.start()
    try:
        transfer_id = store.put(parcel)
        assert transfer_id is not None
        size = KvLayout.of(runner).block_bytes
        fetcher = KvFetcher(key, fingerprint, size, Budget(10_000_000), clock, 10.0)
        engine_id = server.engine_id if is_local else "0" * 32
        return fetcher.fetch(KvSource(transfer_id, engine_id, "127.0.0.1", server.port))
    finally:
        server.close()


requests = {
    "greedy": SamplingParams(temperature=0, max_tokens=12),
    "seed": SamplingParams(seed=2**63, temperature=1.3, top_k=40, top_p=0.9, max_tokens=12),
    "penalties": SamplingParams(
        seed=3, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2, max_tokens=12
    ),
    "log-probabilities": SamplingParams(seed=4, top_logprobs=5, max_tokens=12),
}


@pytest.mark.parametrize(
    ("dtype", "is_local"),
    [("f16", True), ("q8", True), ("f16", False)],
    ids=["shared memory", "int8 over shared memory", "tcp"],
)
def test_a_split_answer_is_the_whole_one_to_the_bit(dtype: KvCacheType, is_local: bool) -> None:
    model = small_model(type_name="Q8_0")
    with (
        runner_of(model, threads=1, kv_cache_dtype=dtype) as ours,
        runner_of(model, threads=2, kv_cache_dtype=dtype) as theirs,
        runner_of(model, threads=1, kv_cache_dtype=dtype) as whole,
    ):
        core, fingerprint = core_of(ours)
        other, its_fingerprint = core_of(theirs)
        reference, _ = core_of(whole)
        assert fingerprint == its_fingerprint
        for number, (name, sampling) in enumerate(requests.items()):
            text = (number, *prompt)
            half = EngineRequest(name, text, SamplingParams(max_tokens=1), hands_over=True)
            parcel = outputs_of(core, half)[-1].parcel
            assert parcel is not None
            parcel = carried(parcel, theirs, fingerprint, is_local=is_local)
            constraint = OddTokens() if name == "penalties" else None
            request = EngineRequest(name, text, sampling, constraint=constraint)
            expected = told(outputs_of(reference, request))
            assert told(outputs_of(other, request, parcel)) == expected
        assert other.stats().kv_transfers == {"imported": len(requests)}
        assert other.stats().imported_tokens_total == len(requests) * len(prompt)


def test_other_weights_positions_or_precision_have_another_fingerprint() -> None:
    model = small_model()
    tensors = dict(model.tensors)
    norm = tensors["blk.1.attn_norm.weight"]
    changed = norm.data.copy()
    changed[3] ^= 1
    tensors[norm.name] = Tensor(norm.name, norm.type, norm.shape, changed)
    seen = set()
    for other in (
        model,
        replace(model, tensors=tensors),
        replace(model, spec=replace(model.spec, rope_scale=2.0)),
    ):
        with runner_of(other) as runner:
            seen.add(core_of(runner)[1])
    with runner_of(model, kv_cache_dtype="q8") as runner:
        seen.add(core_of(runner)[1])
    for bits in activation_choices:
        with runner_of(small_model(type_name="Q4_0"), activation_bits=bits) as runner:
            seen.add(core_of(runner)[1])
    assert len(seen) == 6


def test_a_context_of_no_block_cannot_be_told_from_another() -> None:
    with (
        runner_of(small_model(), kv_tokens=16) as runner,
        pytest.raises(ConfigurationError, match="context"),
    ):
        core_of(runner)
