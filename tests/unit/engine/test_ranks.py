"""Several ranks of one model: the bits are those of a single one, and what cannot be split is said.

The ranks are threads here, over the same shared memory that processes use.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import ConfigurationError, ModelFileError
from headrace.engine.cpu_runner import CpuRunner, KvCacheType
from headrace.engine.encoder import Encoder
from headrace.engine.ranks import (
    RankPlace,
    alone,
    check_ranks,
    rank_spec,
    rank_tensors,
    rows_of_rank,
)
from headrace.engine.runner import ActivationBits
from headrace.kernels import _native, has_fours
from headrace.sim.ranks_here import ranks_here
from headrace.sim.small_model import (
    SmallModel,
    Work,
    base_spec,
    small_model,
    step,
    tokens_of,
)
from headrace.weights.architecture import ArchitectureSpec, NormPlacement, QueryKeyNorm
from headrace.weights.lora.adapter import AdapterPart, LoraAdapter, no_layer, target_shapes
from headrace.weights.tensor import Tensor, TensorType

# Heads and widths that no number of ranks divides: 3 kv heads, 7 units of the feed-forward network.
odd_spec = replace(base_spec, num_heads=6, num_kv_heads=3, ffn_size=224, vocab_size=103)
# Heads narrower than a quantization group, and an output matrix of its own.
narrow_spec = replace(base_spec, num_kv_heads=4, head_dim=16, rope_dimensions=16, tied_output=False)
mixed_spec = replace(
    base_spec,
    num_kv_heads=4,
    norm_placement=NormPlacement.BOTH,
    attention_sinks=True,
    expert_count=4,
    experts_used=2,
    expert_ffn_size=96,
    shared_expert_ffn_size=64,
    shared_expert_gated=True,
)

# OLMo 2: the queries of all heads are normed together, and so are the keys.
whole_norm_spec = replace(
    odd_spec, query_key_norm=QueryKeyNorm.WHOLE, norm_placement=NormPlacement.BRANCH
)
encoder_spec = replace(
    odd_spec,
    family="bert",
    context_length=64,
    encoder=True,
    norm_placement=NormPlacement.AFTER,
    layer_norm=True,
    gated=False,
    rope_dimensions=0,
)


def runner(
    model: SmallModel,
    place: RankPlace,
    threads: int,
    kv_cache_dtype: KvCacheType = "f16",
    *,
    activation_bits: ActivationBits = 16,
    adapters_max: int = 0,
) -> CpuRunner:
    return CpuRunner(
        model,
        model.spec,
        kv_tokens=2048,
        rows_max=300,
        sequences_max=40,
        threads=threads,
        kv_cache_dtype=kv_cache_dtype,
        activation_bits=activation_bits,
        adapters_max=adapters_max,
        adapter_rank_max=20,
        place=place,
    )


@contextmanager
def ranks_of(
    model: SmallModel,
    count: int,
    threads: int = 1,
    kv_cache_dtype: KvCacheType = "f16",
    *,
    activation_bits: ActivationBits = 16,
    adapters_max: int = 0,
) -> Iterator[CpuRunner]:
    """Rank 0, with the others served by threads until it is closed."""

    def open_rank(place: RankPlace) -> CpuRunner:
        return runner(
            model,
            place,
            threads,
            kv_cache_dtype,
            activation_bits=activation_bits,
            adapters_max=adapters_max,
        )

    with ranks_here(count, open_rank) as first:
        yield first


def check_equal(one: CpuRunner, many: CpuRunner, vocab_size: int) -> None:
    """A prompt beside a decode, then steps that go on, more samples than one block of logits."""
    prompt, other = tokens_of(40, 1, vocab_size), tokens_of(290, 2, vocab_size)
    steps: list[Sequence[Work]] = [
        [Work(prompt, 0, [3, 1, 2]), Work(tokens_of(5, 3, vocab_size), 0, [10])],
        [Work([7], 40, [3, 1, 2]), Work([8], 5, [10])],
        [Work(other, 0, list(range(20, 40)))],
        [Work([9], 290, list(range(20, 40))), Work([4], 41, [3, 1, 2])],
        [Work([n % vocab_size], 0, [60 + n]) for n in range(36)],
    ]
    for work in steps:
        expected, logits = one.execute_logits(step(work))
        result, rank_logits = many.execute_logits(step(work))
        assert (rank_logits == logits).all()
        assert (result.token_ids == expected.token_ids).all()
        assert (result.logprobs == expected.logprobs).all()


@pytest.mark.parametrize(
    ("type_name", "spec", "count", "threads"),
    [
        ("F32", base_spec, 2, 1),
        ("Q4_0", base_spec, 2, 1),
        ("Q8_0", odd_spec, 3, 1),
        ("Q4_1", narrow_spec, 2, 1),
        ("Q8_0", mixed_spec, 2, 1),
        ("F16", replace(odd_spec, residual_scale=0.5), 2, 2),
        ("Q4_0", whole_norm_spec, 3, 1),
        ("F32", whole_norm_spec, 2, 2),
    ],
)
def test_logits_are_those_of_one_rank(
    type_name: str, spec: ArchitectureSpec, count: int, threads: int
) -> None:
    model = small_model(spec, type_name)
    with runner(model, alone, 2) as one, ranks_of(model, count, threads) as many:
        check_equal(one, many, spec.vocab_size)
        assert many.weight_bytes < one.weight_bytes
        assert many.kv_bytes < one.kv_bytes


@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0"])
def test_logits_of_8_bit_activations_are_those_of_one_rank(
    type_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if _native.has_fours("avx2", 8):
        monkeypatch.setenv("HEADRACE_CPU_ISA", "avx2")  # AVX-512 has none for weights of 8 bits
    model = small_model(narrow_spec, type_name)
    with (
        runner(model, alone, 2, activation_bits=8) as one,
        ranks_of(model, 2, activation_bits=8) as many,
    ):
        assert many.info.activation_bits == (8 if type_name == "Q4_0" or has_fours(8) else 16)
        check_equal(one, many, narrow_spec.vocab_size)


def adapter_of(spec: ArchitectureSpec, rank: int, seed: int) -> LoraAdapter:
    """Random changes of every matrix that an adapter may change."""
    rng = np.random.default_rng(seed)

    def half(rows: int, columns: int) -> Tensor:
        values = (rng.normal(size=(rows, columns)) / 8).astype(np.float32)
        return Tensor("", TensorType.F32, (rows, columns), values.view(np.uint8).reshape(-1))

    parts = [
        AdapterPart(layer, target, 0.5, half(rank, inputs), half(outputs, rank))
        for layer in range(spec.num_layers)
        for target, (outputs, inputs) in target_shapes(spec).items()
    ]
    vocabulary, hidden = spec.vocab_size, spec.hidden_size
    parts += [
        AdapterPart(no_layer, "token_embd", 0.5, half(vocabulary, rank), half(hidden, rank)),
        AdapterPart(no_layer, "output", 0.5, half(rank, hidden), half(vocabulary, rank)),
    ]
    return LoraAdapter(Path(), "", tuple(parts))


@pytest.mark.parametrize(
    ("type_name", "spec", "count", "threads"),
    [
        ("F32", odd_spec, 3, 1),
        ("Q4_0", narrow_spec, 2, 1),
        ("Q8_0", mixed_spec, 2, 1),
        ("F16", base_spec, 2, 2),
    ],
)
def test_adapters_give_the_bits_of_one_rank(
    type_name: str, spec: ArchitectureSpec, count: int, threads: int
) -> None:
    model = small_model(spec, type_name)
    vocab = spec.vocab_size
    adapters = [adapter_of(spec, 4, 1), adapter_of(spec, 20, 2)]
    works = [
        [Work(tokens_of(40, 1, vocab), 0, [3, 1, 2]), Work(tokens_of(5, 3, vocab), 0, [10])],
        [Work([7], 40, [3, 1, 2]), Work([8], 5, [10])],
        [Work(tokens_of(290, 2, vocab), 0, list(range(20, 40))), Work([4], 41, [3, 1, 2])],
        [Work([n % vocab], 0, [60 + n]) for n in range(36)],
    ]
    with (
        runner(model, alone, 2, adapters_max=2) as one,
        ranks_of(model, count, threads, adapters_max=2) as many,
    ):
        for each in (one, many):
            for slot, adapter in enumerate(adapters):
                each.load_adapter(slot, adapter)
        for work in works:
            slots = np.arange(len(work), dtype=np.int32) % 3 - 1
            plain = one.execute_logits(step(work))[1]
            for batch in (step(work), replace(step(work), adapters=slots)):
                expected, logits = one.execute_logits(batch)
                result, rank_logits = many.execute_logits(batch)
                assert (rank_logits == logits).all()
                assert (result.token_ids == expected.token_ids).all()
            assert (logits == plain).all(axis=1).tolist() == (slots == -1).tolist()


def test_an_adapter_is_loaded_and_unloaded_while_ranks_step() -> None:
    model = small_model(base_spec, "Q8_0")
    work = step([Work([5], 0, [3])])
    through = replace(work, adapters=np.zeros(1, np.int32))
    adapter = adapter_of(base_spec, 4, 1)
    with ranks_of(model, 2, adapters_max=1) as many:
        expected = many.execute_logits(work)[1]
        many.load_adapter(0, adapter)
        changed = many.execute_logits(through)[1]
        assert not np.array_equal(changed, expected)

        def reload() -> None:
            for _ in range(20):
                many.unload_adapter(0)
                many.load_adapter(0, adapter)

        loading = threading.Thread(target=reload)
        loading.start()
        while loading.is_alive():
            assert (many.execute_logits(work)[1] == expected).all()
        assert (many.execute_logits(through)[1] == changed).all()
        many.unload_adapter(0)
        with pytest.raises(ValueError, match="slot without an adapter"):
            many.execute(through)
        assert (many.execute_logits(work)[1] == expected).all()


def test_an_adapter_that_the_first_rank_refuses_is_on_no_rank() -> None:
    wrong = adapter_of(replace(base_spec, hidden_size=96), 4, 1)
    model = small_model()
    with ranks_of(model, 2, adapters_max=1) as many:
        with pytest.raises(ModelFileError, match="does not fit the model"):
            many.load_adapter(0, wrong)
        assert many.execute(step([Work([5], 0, [3])])).token_ids.shape == (1,)


def test_copied_and_discarded_blocks_are_so_on_every_rank() -> None:
    model = small_model(base_spec, "Q8_0")
    first, then = Work(tokens_of(16), 0, [3]), Work([5], 16, [8, 9])
    with runner(model, alone, 1, "q8") as one, ranks_of(model, 2, 1, "q8") as many:
        expected = []
        for each in (one, many):
            each.execute(step([first]))
            each.copy_blocks([(3, 8)] * 400)  # more than one command carries
            expected.append(each.execute_logits(step([then]))[1])
            each.discard_kv()
            expected.append(each.execute_logits(step([then]))[1])
    assert (expected[0] == expected[2]).all()
    assert (expected[1] == expected[3]).all()
    assert not np.array_equal(expected[0], expected[1])


def test_a_step_without_samples_and_a_refused_one_leave_the_ranks_together() -> None:
    model = small_model()
    with runner(model, alone, 1) as one, ranks_of(model, 2) as many:
        prompt = step([Work(tokens_of(20), 0, [0, 1])])
        unsampled = replace(
            prompt,
            **{
                name: getattr(prompt, name)[:0]
                for name in (
                    "sampled",
                    "temperature",
                    "top_k",
                    "top_p",
                    "min_p",
                    "seed",
                    "position",
                )
            },
        )
        for each in (one, many):
            each.execute(unsampled)
            with pytest.raises(ValueError, match="token_ids"):
                each.execute(step([Work([1_000], 0, [0])]))
        after = step([Work([3], 20, [0, 1])])
        assert (many.execute_logits(after)[1] == one.execute_logits(after)[1]).all()


@pytest.mark.parametrize(("count", "threads"), [(2, 2), (3, 1)])
def test_an_encoders_vectors_are_those_of_one_rank(count: int, threads: int) -> None:
    model = small_model(encoder_spec, "Q8_0")
    texts = [tokens_of(length, length, 103) for length in (5, 40, 1, 19)]
    expected = Encoder(model, encoder_spec, threads=2).embed(texts)
    descriptor = os.memfd_create("ranks")
    others = [
        Encoder(model, encoder_spec, threads=threads, place=RankPlace(rank, count, descriptor))
        for rank in range(1, count)
    ]
    serving = [threading.Thread(target=other.serve) for other in others]
    first = Encoder(model, encoder_spec, threads=threads, place=RankPlace(0, count, descriptor))
    for thread in serving:
        thread.start()
    found = first.embed(texts), first.embed(texts[1:2])
    del first  # which lets the others go
    for thread in serving:
        thread.join()
    os.close(descriptor)
    assert found == (expected, expected[1:2])


@pytest.mark.parametrize(
    ("changes", "ranks", "reason"),
    [
        ({}, 3, "2 key/value heads, and each rank needs at least one; give at most 2"),
        ({"ffn_size": 32}, 2, "1 units of 32 feed-forward values"),
        ({"vocab_size": 16}, 2, "1 tiles of 16 tokens"),
    ],
)
def test_what_cannot_be_split_is_said(changes: dict[str, object], ranks: int, reason: str) -> None:
    spec = replace(base_spec, **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=reason):
        check_ranks(spec, ranks)
    check_ranks(spec, 1)


def test_parts_cover_everything_once_and_are_what_ranks_allocate() -> None:
    for count, unit, ranks in ((103, 16, 3), (3, 1, 2), (224, 32, 7), (64, 16, 4)):
        parts = [list(rows_of_rank(rank, ranks, count, unit)) for rank in range(ranks)]
        assert [row for part in parts for row in part] == list(range(count))
        assert all(parts)
    model = small_model(odd_spec, "F32")
    sizes = [rank_tensors(odd_spec, model.tensors, rank, 2) for rank in (0, 1)]
    heads = [rank_spec(odd_spec, rank, 2).num_kv_heads for rank in (0, 1)]
    assert heads == [1, 2]
    for name, tensor in model.tensors.items():
        halves = [size[name].value_count for size in sizes]
        assert sum(halves) == tensor.value_count * (2 if "norm" in name else 1)
