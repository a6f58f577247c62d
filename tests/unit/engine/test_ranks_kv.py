"""KV of several ranks: whole outside, so that it waits in host memory and goes to other engines."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from headrace.engine.core import EngineCore
from headrace.engine.cpu_runner import CpuRunner, KvCacheType
from headrace.engine.ranks import RankPlace, alone
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.runner import ModelRunner
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine_server.kv_exchange import make_fingerprint
from headrace.sim.clock import ManualClock
from headrace.sim.ranks_here import ranks_here
from headrace.sim.small_model import SmallModel, Work, base_spec, small_model, step, tokens_of

# Of 2 and of 3 ranks: 3 kv heads, with two query heads each.
odd_spec = replace(base_spec, num_heads=6, num_kv_heads=3, ffn_size=224, vocab_size=103)
key = b"k" * 32
host_blocks = 40


def open_rank(model: SmallModel, dtype: KvCacheType, kv_tokens: int, place: RankPlace) -> CpuRunner:
    return CpuRunner(
        model,
        model.spec,
        kv_tokens=kv_tokens,
        rows_max=64,
        sequences_max=8,
        threads=1,
        kv_cache_dtype=dtype,
        place=place,
    )


@contextmanager
def runner(
    model: SmallModel, ranks: int, dtype: KvCacheType = "f16", kv_tokens: int = 2048
) -> Iterator[CpuRunner]:
    """One process, or the first of several ranks."""
    opened = partial(open_rank, model, dtype, kv_tokens)
    with opened(alone) if ranks == 1 else ranks_here(ranks, opened) as first:
        yield first


@pytest.mark.parametrize("dtype", ["f16", "q8"])
def test_exported_blocks_are_those_of_one_rank_and_go_to_any_number(dtype: KvCacheType) -> None:
    model = small_model(odd_spec, "Q8_0")
    prompt = step([Work(tokens_of(40, 1, 103), 0, [3, 1, 2])])
    then = step([Work([5], 40, [7, 9, 8])])
    with (
        runner(model, 1, dtype) as one,
        runner(model, 2, dtype) as two,
        runner(model, 3, dtype) as three,
    ):
        every = (one, two, three)
        for each in every:
            each.execute(prompt)
        exported = [each.export_blocks([3, 1, 2]) for each in every]
        assert exported[0] == exported[1] == exported[2]
        for each in every:
            each.discard_kv()
            each.import_blocks([7, 9, 8], exported[0])
            assert each.export_blocks([7, 9, 8]) == exported[0]
        logits = [each.execute_logits(then)[1] for each in every]
    assert (logits[0] == logits[1]).all()
    assert (logits[0] == logits[2]).all()


def test_blocks_that_are_not_there_leave_the_ranks_together() -> None:
    with runner(small_model(), 2) as many:
        block = many.export_blocks([0])
        with pytest.raises(ValueError, match="block id 128"):
            many.export_blocks([128])
        with pytest.raises(ValueError, match="layout"):
            many.import_blocks([0], block[:-1])
        assert many.export_blocks([0]) == block


def tokens_of_all(core: EngineCore) -> dict[str, list[int]]:
    """What each request got, once all have ended."""
    found: dict[str, list[int]] = {}
    while core.has_work():
        for output in core.step():
            found.setdefault(output.request_id, []).extend(output.token_ids)
        core.check_invariants()
    return found


def crowd(model_runner: ModelRunner) -> tuple[EngineCore, dict[str, list[int]]]:
    """Requests that preempt each other, with room for their KV in host memory."""
    config = SchedulerConfig(key, step_rows=32, host_blocks_max=host_blocks)
    core = EngineCore(model_runner, config, ManualClock())
    for number in range(5):
        prompt = tuple(int(token) for token in tokens_of(24 + number, number, 103))
        core.submit(EngineRequest(str(number), prompt, SamplingParams(seed=number, max_tokens=30)))
    return core, tokens_of_all(core)


@pytest.mark.parametrize("ranks", [2, 3])
def test_preempted_requests_of_ranks_wait_in_host_memory(ranks: int) -> None:
    model = small_model(odd_spec, "Q8_0")
    with runner(model, 1) as roomy:
        _, expected = crowd(roomy)
    with runner(model, ranks, kv_tokens=160) as many:
        core, found = crowd(many)
    assert found == expected
    stats = core.stats()
    assert stats.preemptions_total > 0
    assert stats.restored_tokens_total > 0
    assert stats.recomputed_tokens_total == 0


@pytest.mark.parametrize(("ranks", "other_ranks"), [(1, 2), (2, 1), (2, 3)])
def test_a_prompt_goes_from_one_number_of_ranks_to_another(ranks: int, other_ranks: int) -> None:
    model, clock = small_model(odd_spec, "Q8_0"), ManualClock()
    prompt = tuple(int(token) for token in tokens_of(77, 5, 103))
    sampling = SamplingParams(seed=3, temperature=1.3, max_tokens=12)
    whole = EngineRequest("whole", prompt, sampling)
    half = EngineRequest("half", prompt, SamplingParams(max_tokens=1), hands_over=True)
    with runner(model, ranks) as ours, runner(model, other_ranks) as theirs:
        config = SchedulerConfig(key, step_rows=32)
        prints = [make_fingerprint(each, config, clock) for each in (ours, theirs)]
        assert prints[0] == prints[1]
        config = replace(config, kv_fingerprint=prints[0])
        core, other = (EngineCore(each, config, clock) for each in (ours, theirs))
        core.submit(whole)
        expected = tokens_of_all(core)["whole"]
        core.submit(half)
        parcels = []
        while core.has_work():
            parcels += [output.parcel for output in core.step() if output.parcel is not None]
        other.submit(whole, parcels[0])
        assert tokens_of_all(other)["whole"] == expected
        assert other.stats().kv_transfers == {"imported": 1}
