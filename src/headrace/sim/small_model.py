"""Small random models in a file's types, and steps of them by hand, for tests of the CPU runner."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from headrace.engine.cpu_runner import CpuRunner, KvCacheType
from headrace.engine.runner import ActivationBits, StepBatch
from headrace.weights.architecture import ArchitectureSpec, RopeStyle
from headrace.weights.layout import required_shapes
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


@dataclass(frozen=True)
class SmallModel:
    """Random weights in a file's types, and the float values that they mean."""

    spec: ArchitectureSpec
    tensors: dict[str, Tensor]
    values: dict[str, Floats]


def tensor_shapes(spec: ArchitectureSpec) -> dict[str, tuple[int, ...]]:
    """Each tensor of a plain Llama of this shape."""
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
    """The same weights at each call, stored as `type_name` says."""
    rng = np.random.default_rng(7)
    tensors, values = {}, {}
    required = required_shapes(spec)
    shapes = tensor_shapes(spec) | required  # a plain Llama's first, in the order they always had
    for name, shape in shapes.items():
        if name not in required:
            continue
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
    activation_bits: ActivationBits = 16,
) -> Iterator[CpuRunner]:
    """A runner of the model, closed at the end."""
    with CpuRunner(
        model,
        model.spec,
        kv_tokens=kv_tokens,
        rows_max=512,
        sequences_max=40,
        threads=threads,
        kv_cache_dtype=kv_cache_dtype,
        activation_bits=activation_bits,
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
    """Random token ids, the same at each call."""
    drawn: list[int] = np.random.default_rng(seed).integers(0, vocab_size, count).tolist()
    return drawn


def blocks_of(count: int, seed: int = 0) -> list[int]:
    """Some of 128 blocks in an order that is not theirs."""
    shuffled: list[int] = np.random.default_rng(seed).permutation(128)[:count].tolist()
    return shuffled
