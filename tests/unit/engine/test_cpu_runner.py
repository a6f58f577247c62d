"""The compiled model runner on small random models, against the float NumPy forward pass.

Tolerances: only keys and values are rounded to half, and activations that meet quantized weights to
16 bits, so logits agree to 1e-2 of their standard deviation. Answers must not depend on the batch,
on chunking or on threads at all: those tests compare bits.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.base.errors import ConfigurationError, ModelFileError
from headrace.engine.cpu_runner import CpuRunner, KvCacheType
from headrace.engine.runner import LogitEdits, StepBatch, TokenMasks
from headrace.kernels import _native
from headrace.kernels.reference.sampler import sample, top_tokens
from headrace.kernels.reference.transformer import forward
from headrace.weights.architecture import ArchitectureSpec, RopeStyle
from headrace.weights.tensor import Tensor, TensorType

Floats = NDArray[np.float32]

base_spec = ArchitectureSpec(
    family="llama",
    num_layers=2,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    ffn_size=96,
    vocab_size=100,
    context_length=1024,
    norm_epsilon=1e-5,
    rope_style=RopeStyle.ADJACENT,
    rope_dimensions=32,
    rope_theta=10_000.0,
    rope_scale=1.0,
    tied_output=True,
)

isa_names = {"portable": "portable", "avx2": "avx2", "avx512": "avx512-vnni"}


@dataclass(frozen=True)
class SmallModel:
    """Random weights in a file's types, and the float values that they mean."""

    spec: ArchitectureSpec
    tensors: dict[str, Tensor]
    values: dict[str, Floats]


def tensor_shapes(spec: ArchitectureSpec) -> dict[str, tuple[int, ...]]:
    hidden, queries = spec.hidden_size, spec.num_heads * spec.head_dim
    kv = spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (spec.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not spec.tied_output:
        shapes["output.weight"] = (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        prefix = f"blk.{layer}."
        shapes |= {
            prefix + "attn_norm.weight": (hidden,),
            prefix + "attn_q.weight": (queries, hidden),
            prefix + "attn_k.weight": (kv, hidden),
            prefix + "attn_v.weight": (kv, hidden),
            prefix + "attn_output.weight": (hidden, queries),
            prefix + "ffn_norm.weight": (hidden,),
            prefix + "ffn_gate.weight": (spec.ffn_size, hidden),
            prefix + "ffn_up.weight": (spec.ffn_size, hidden),
            prefix + "ffn_down.weight": (hidden, spec.ffn_size),
        }
    return shapes


def small_model(spec: ArchitectureSpec = base_spec, type_name: str = "F32") -> SmallModel:
    rng = np.random.default_rng(7)
    tensors, values = {}, {}
    for name, shape in tensor_shapes(spec).items():
        kind = gguf.GGMLQuantizationType["F32" if len(shape) == 1 else type_name]
        scale = 1.0 if len(shape) == 1 else 2.0 / np.sqrt(shape[-1])
        weights = (rng.normal(size=shape) * scale).astype(np.float32)
        data = np.ascontiguousarray(gguf.quants.quantize(weights, kind))
        values[name] = gguf.quants.dequantize(data, kind).reshape(shape)
        tensors[name] = Tensor(name, TensorType(int(kind)), shape, data.view(np.uint8).reshape(-1))
    return SmallModel(spec, tensors, values)


@contextmanager
def runner_of(
    model: SmallModel,
    *,
    threads: int = 2,
    kv_tokens: int = 2048,
    kv_cache_dtype: KvCacheType = "f16",
) -> Iterator[CpuRunner]:
    with CpuRunner(
        model,
        model.spec,
        kv_tokens=kv_tokens,
        rows_max=512,
        sequences_max=40,
        threads=threads,
        kv_cache_dtype=kv_cache_dtype,
    ) as runner:
        yield runner


@dataclass(frozen=True)
class Work:
    """One sequence's part of a step: its new tokens, where they start, its blocks."""

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]


def step(work: Sequence[Work], **sampling: Sequence[float]) -> StepBatch:
    """A greedy step that samples every sequence, or as `sampling` says."""
    count = len(work)

    def offsets(lengths: Sequence[int]) -> NDArray[np.int32]:
        return np.cumsum([0, *lengths]).astype(np.int32)

    batch = StepBatch(
        token_ids=np.concatenate([np.array(w.token_ids, np.int32) for w in work]),
        row_starts=offsets([len(w.token_ids) for w in work]),
        context_lens=np.array([w.start + len(w.token_ids) for w in work], np.int32),
        block_ids=np.concatenate([np.array(w.blocks, np.int32) for w in work]),
        block_starts=offsets([len(w.blocks) for w in work]),
        sampled=np.arange(count, dtype=np.int32),
        temperature=np.zeros(count, np.float32),
        top_k=np.zeros(count, np.int32),
        top_p=np.ones(count, np.float32),
        min_p=np.zeros(count, np.float32),
        seed=np.zeros(count, np.uint64),
        position=np.zeros(count, np.int64),
    )
    arrays: dict[str, Any] = {
        name: np.array(values, getattr(batch, name).dtype) for name, values in sampling.items()
    }
    return replace(batch, **arrays)


def tokens_of(count: int, seed: int = 0, vocab_size: int = 100) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(0, vocab_size, count).tolist()
    return drawn


def blocks_of(count: int, seed: int = 0) -> list[int]:
    shuffled: list[int] = np.random.default_rng(seed).permutation(128)[:count].tolist()
    return shuffled


def assert_close(found: Floats, expected: Floats, tolerance: float) -> None:
    np.testing.assert_allclose(found, expected, atol=tolerance * float(expected.std()))


@pytest.fixture(params=list(isa_names))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test with each instruction set that this CPU has."""
    name: str = request.param
    if _native.kernel_name(name) != isa_names[name]:
        pytest.skip(f"this CPU does not run {name}")
    monkeypatch.setenv("HEADRACE_CPU_ISA", name)
    return name


specs = {
    "plain": base_spec,
    "halves": replace(base_spec, rope_style=RopeStyle.HALVES),
    "partly rotated": replace(base_spec, rope_dimensions=16),
    "scaled positions": replace(base_spec, rope_scale=4.0),
    "untied": replace(base_spec, tied_output=False),
    "head 64": replace(base_spec, head_dim=64, rope_dimensions=64),
    "head 128, one kv head": replace(
        base_spec, head_dim=128, rope_dimensions=128, num_kv_heads=1, num_layers=1
    ),
    "no groups": replace(base_spec, num_kv_heads=4),
    "9 heads over 3": replace(
        base_spec, hidden_size=576, num_heads=9, num_kv_heads=3, head_dim=64, rope_dimensions=64
    ),
    "head 16, odd vocabulary": replace(
        base_spec, head_dim=16, rope_dimensions=16, num_kv_heads=4, vocab_size=77
    ),
}


@pytest.mark.parametrize("name", list(specs))
@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
def test_logits_are_those_of_the_reference(isa: str, name: str, type_name: str) -> None:
    model = small_model(specs[name], type_name)
    tokens = tokens_of(37, vocab_size=model.spec.vocab_size)
    with runner_of(model) as runner:
        result, logits = runner.execute_logits(step([Work(tokens, 0, blocks_of(3))]))
    expected = forward(model.spec, model.values, tokens)[-1]
    assert_close(logits[0], expected, 1e-2)
    reference = sample(logits[0], temperature=0.0)
    assert result.token_ids[0] == reference.token_id
    assert result.logprobs[0] == pytest.approx(reference.logprob, abs=1e-4)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("name", ["plain", "9 heads over 3", "head 16, odd vocabulary"])
def test_quantized_logits_are_near_the_reference(isa: str, name: str, type_name: str) -> None:
    model = small_model(specs[name], type_name)
    tokens = tokens_of(20, vocab_size=model.spec.vocab_size)
    with runner_of(model) as runner:
        _, logits = runner.execute_logits(step([Work(tokens, 0, blocks_of(2))]))
    expected = forward(model.spec, model.values, tokens)[-1]
    assert_close(logits[0], expected, 1e-2)


def test_contexts_past_a_split_are_right(isa: str) -> None:
    model = small_model()
    tokens = tokens_of(600)
    with runner_of(model) as runner:
        blocks = blocks_of(38)
        runner.execute(step([Work(tokens[:400], 0, blocks)]))
        _, logits = runner.execute_logits(step([Work(tokens[400:], 400, blocks)]))
        _, again = runner.execute_logits(step([Work(tokens[-1:], 599, blocks)]))
    assert_close(logits[0], forward(model.spec, model.values, tokens)[-1], 1e-2)
    assert (again.view(np.uint32) == logits.view(np.uint32)).all()


def test_a_bias_is_added(isa: str) -> None:
    model = small_model()
    bias = np.linspace(-1, 1, 128).astype(np.float32)
    name = "blk.0.attn_q.bias"
    biased = replace(
        model,
        tensors=model.tensors | {name: Tensor(name, TensorType.F32, (128,), bias.view(np.uint8))},
    )
    work = step([Work(tokens_of(9), 0, [0])])
    with runner_of(model) as plain, runner_of(biased) as runner:
        _, expected = plain.execute_logits(work)
        _, found = runner.execute_logits(work)
    assert not np.allclose(found, expected, atol=1e-3)


def test_frequency_divisors_of_the_file_are_used() -> None:
    model = small_model(specs["scaled positions"])
    divisors = np.full(16, 4.0, np.float32)
    name = "rope_freqs.weight"
    divided = replace(
        small_model(),
        tensors=model.tensors
        | {name: Tensor(name, TensorType.F32, (16,), divisors.view(np.uint8))},
    )
    work = step([Work(tokens_of(40), 0, blocks_of(3))])
    with runner_of(model) as scaled, runner_of(divided) as runner:
        _, expected = scaled.execute_logits(work)
        _, found = runner.execute_logits(work)
    assert_close(found, expected, 1e-4)


@pytest.mark.parametrize("type_name", ["F32", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("threads", [1, 3])
def test_answers_do_not_depend_on_batch_chunks_or_threads(
    isa: str, type_name: str, threads: int
) -> None:
    model = small_model(specs["9 heads over 3"], type_name)
    prompts = [tokens_of(count, seed=count) for count in (1, 5, 33, 300, 17)]
    tables = [blocks_of(128, seed=3)[i * 20 : i * 20 + 20] for i in range(5)]
    with runner_of(model, threads=2) as runner:
        alone = [
            runner.execute_logits(step([Work(prompt, 0, table)]))[1][0]
            for prompt, table in zip(prompts, tables, strict=True)
        ]
    with runner_of(model, threads=threads) as runner:
        for size in (64, 13):
            for prompt, table in zip(prompts, tables, strict=True):
                for start in range(0, len(prompt) - 1, size):
                    chunk = prompt[start : min(start + size, len(prompt) - 1)]
                    runner.execute(step([Work(chunk, start, table)]))
            last = [
                Work(prompt[-1:], len(prompt) - 1, table)
                for prompt, table in zip(prompts, tables, strict=True)
            ]
            _, together = runner.execute_logits(step(last))
            assert (together.view(np.uint32) == np.stack(alone).view(np.uint32)).all()


def test_int8_keys_and_values_do_not_depend_on_chunks_and_take_half_the_room(isa: str) -> None:
    model = small_model(specs["head 64"], "Q8_0")
    tokens = tokens_of(300)
    blocks = blocks_of(19)
    with runner_of(model, kv_cache_dtype="q8") as runner, runner_of(model) as half:
        _, whole = runner.execute_logits(step([Work(tokens, 0, blocks)]))
        stored = runner.export_blocks(blocks[:18])
        for start, end in ((0, 7), (7, 150), (150, 299)):
            runner.execute(step([Work(tokens[start:end], start, blocks)]))
        _, pieces = runner.execute_logits(step([Work(tokens[299:], 299, blocks)]))
        assert (pieces.view(np.uint32) == whole.view(np.uint32)).all()
        assert runner.export_blocks(blocks[:18]) == stored
        assert_close(whole[0], half.execute_logits(step([Work(tokens, 0, blocks)]))[1][0], 0.2)
        assert runner.kv_bytes < 0.57 * half.kv_bytes
        with pytest.raises(ValueError, match="layout"):
            half.import_blocks(blocks[:18], stored)


def test_many_sampled_rows_are_taken_in_blocks(isa: str) -> None:
    model = small_model()
    work = [Work(tokens_of(3, seed=i), 0, [i]) for i in range(40)]
    with runner_of(model) as runner:
        result, logits = runner.execute_logits(step(work))
        for index in (0, 31, 32, 39):
            _, alone = runner.execute_logits(step([work[index]]))
            assert (alone[0].view(np.uint32) == logits[index].view(np.uint32)).all()
    assert (result.token_ids == logits.argmax(axis=1)).all()


def test_sampling_parameters_reach_their_row() -> None:
    model = small_model()
    work = [Work(tokens_of(4, seed=i), 0, [i]) for i in range(3)]
    chosen: dict[str, list[Any]] = {
        "temperature": [0.0, 1.5, 0.7],
        "top_k": [0, 5, 0],
        "top_p": [1.0, 1.0, 0.8],
        "min_p": [0.0, 0.1, 0.0],
        "seed": [1, 2**63, 3],
        "position": [0, 9, 4],
    }
    with runner_of(model) as runner:
        result, logits = runner.execute_logits(step(work, **chosen))
    for row in range(3):
        params = {name: values[row] for name, values in chosen.items()}
        expected = sample(logits[row], **params)
        assert result.token_ids[row] == expected.token_id


def test_edits_masks_and_top_tokens_reach_their_row_and_no_other() -> None:
    work = [Work(tokens_of(4, seed=i), 0, [i]) for i in range(3)]
    plain = step(work)
    banned = np.full(100, -np.inf, np.float32)
    banned[7] = 0
    edits = LogitEdits(
        np.array([0, 0, 100, 100], np.int32),
        np.arange(100, dtype=np.int32),
        np.ones(100, np.float32),
        banned,
    )
    masks = TokenMasks(np.array([-1, -1, 0], np.int32), np.array([[0, 1 << 9, 0, 0]], np.uint32))
    top_counts = np.array([3, 0, 1], np.int32)
    with runner_of(small_model()) as runner:
        alone, logits = runner.execute_logits(plain)
        edited = replace(plain, edits=edits, masks=masks, top_counts=top_counts)
        result, same_logits = runner.execute_logits(edited)
    assert result.token_ids.tolist() == [alone.token_ids[0], 7, 32 + 9]
    np.testing.assert_array_equal(same_logits, logits)
    assert result.top_ids is not None
    assert result.top_logprobs is not None
    assert result.top_ids[0].tolist() == [t.token_id for t in top_tokens(logits[0], 3)]
    assert result.top_ids[2, 0] == alone.token_ids[2]
    assert result.top_logprobs[2, 0] == alone.logprobs[2]


def test_a_poisoned_model_gives_no_token() -> None:
    model = small_model()
    data = model.tensors["output_norm.weight"].data.copy()
    data.view(np.float32)[3] = np.nan
    tensors = model.tensors | {
        "output_norm.weight": replace(model.tensors["output_norm.weight"], source=data)
    }
    with runner_of(replace(model, tensors=tensors)) as runner:
        result = runner.execute(step([Work([1, 2], 0, [0])]))
    assert result.token_ids.tolist() == [-1]
    assert np.isnan(result.logprobs).all()


def test_blocks_move_by_copy_and_by_bytes() -> None:
    model = small_model()
    tokens = tokens_of(30)
    with runner_of(model) as runner, runner_of(model) as other:
        runner.execute(step([Work(tokens[:-1], 0, [4, 7])]))
        _, expected = runner.execute_logits(step([Work(tokens[-1:], 29, [4, 7])]))
        runner.copy_blocks([(4, 11), (7, 12)])
        _, copied = runner.execute_logits(step([Work(tokens[-1:], 29, [11, 12])]))
        other.import_blocks([0, 1], runner.export_blocks([4, 7]))
        _, imported = other.execute_logits(step([Work(tokens[-1:], 29, [0, 1])]))
    assert (copied == expected).all()
    assert (imported == expected).all()


def test_blocks_of_another_layout_are_refused() -> None:
    model = small_model()
    with runner_of(model) as runner, runner_of(small_model(specs["head 64"])) as other:
        data = runner.export_blocks([0])
        with pytest.raises(ValueError, match="layout"):
            other.import_blocks([0], data)
        with pytest.raises(ValueError, match="layout"):
            runner.import_blocks([0, 1], data)
        with pytest.raises(ValueError, match="block id 128"):
            runner.export_blocks([128])
        with pytest.raises(ValueError, match="block id -1"):
            runner.copy_blocks([(0, -1)])


def edits_of(ids: list[int], factors: list[float], addends: list[float]) -> LogitEdits:
    return LogitEdits(
        np.array([0, len(ids), len(ids)], np.int32),
        np.array(ids, np.int32),
        np.array(factors, np.float32),
        np.array(addends, np.float32),
    )


good = step([Work([1, 2, 3], 0, [0]), Work([4], 20, [1, 2])])
bad_batches = {
    "token_ids": replace(good, token_ids=np.array([1, 2, 100, 4], np.int32)),
    "negative token": replace(good, token_ids=np.array([1, 2, -1, 4], np.int32)),
    "block_ids": replace(good, block_ids=np.array([0, 1, 128], np.int32)),
    "sampled": replace(good, sampled=np.array([0, 2], np.int32)),
    "row_starts": replace(good, row_starts=np.array([0, 3, 5], np.int32)),
    "empty sequence": replace(good, row_starts=np.array([0, 4, 4], np.int32)),
    "falling starts": replace(good, row_starts=np.array([0, 5, 4], np.int32)),
    "short table": replace(good, context_lens=np.array([17, 21], np.int32)),
    "rows past context": replace(good, context_lens=np.array([2, 21], np.int32)),
    "long context": replace(good, context_lens=np.array([3, 2000], np.int32)),
    "missing sequence": replace(good, context_lens=np.array([3], np.int32)),
    "temperature": replace(good, temperature=np.array([0, np.nan], np.float32)),
    "top_p": replace(good, top_p=np.array([0, 1], np.float32)),
    "samples": replace(good, seed=np.zeros(1, np.uint64)),
    "no rows": replace(good, token_ids=good.token_ids[:0]),
    "edited token": replace(good, edits=edits_of([100], [1.0], [0.0])),
    "edit factor": replace(good, edits=edits_of([1], [0.0], [0.0])),
    "edit addend": replace(good, edits=edits_of([1], [1.0], [np.nan])),
    "edit lengths": replace(good, edits=edits_of([1, 2], [1.0], [0.0])),
    "mask row": replace(good, masks=TokenMasks(good.sampled, np.zeros((1, 4), np.uint32))),
    "mask width": replace(good, masks=TokenMasks(good.sampled, np.zeros((2, 3), np.uint32))),
    "top counts": replace(good, top_counts=np.array([101, 1], np.int32)),
    "negative top count": replace(good, top_counts=np.array([-1, 1], np.int32)),
    "wrong type": replace(good, token_ids=good.token_ids.astype(np.int64)),
}


@pytest.mark.parametrize("name", list(bad_batches))
def test_a_bad_batch_is_an_error_and_nothing_else(name: str) -> None:
    with runner_of(small_model()) as runner:
        with pytest.raises((ValueError, TypeError)):
            runner.execute(bad_batches[name])
        assert runner.execute(good).token_ids.shape == (2,)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("blk.1.ffn_up.weight", {"shape": (64, 96)}),
        ("blk.0.attn_q.weight", {"type": TensorType.Q4_K}),
        ("token_embd.weight", {"data": np.zeros(8, np.uint8)}),
        ("output_norm.weight", {"shape": (32,)}),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(name: str, change: dict[str, Any]) -> None:
    model = small_model()
    tensors = model.tensors | {name: replace(model.tensors[name], **change)}
    with (
        pytest.raises(ModelFileError, match=name),
        runner_of(replace(model, tensors=tensors)),
    ):
        pass


def test_a_missing_tensor_is_refused_by_name() -> None:
    model = small_model()
    tensors = {k: v for k, v in model.tensors.items() if k != "blk.1.attn_v.weight"}
    with (
        pytest.raises(ModelFileError, match=r"blk\.1\.attn_v\.weight is missing"),
        runner_of(replace(model, tensors=tensors)),
    ):
        pass


@pytest.mark.parametrize(
    ("field", "value"),
    [("head_dim", 20), ("num_kv_heads", 3), ("num_layers", 0), ("rope_dimensions", 66)],
)
def test_a_shape_that_cannot_run_is_refused_by_field(field: str, value: int) -> None:
    model = small_model()
    spec = replace(base_spec, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match=field), runner_of(replace(model, spec=spec)):
        pass


@pytest.mark.parametrize("settings", [{"threads": 0}, {"kv_tokens": 8}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with (
        pytest.raises(ConfigurationError, match=next(iter(settings))),
        runner_of(small_model(), **settings),
    ):
        pass
