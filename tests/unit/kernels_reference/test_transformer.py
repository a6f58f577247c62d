"""The whole-model reference on a tiny random model."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.kernels.architecture import ArchitectureSpec, RopeStyle
from headrace.kernels.reference.transformer import forward

tiny_spec = ArchitectureSpec(
    family="llama",
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_size=48,
    vocab_size=50,
    context_length=128,
    norm_epsilon=1e-5,
    rope_style=RopeStyle.ADJACENT,
    rope_dimensions=8,
    rope_theta=10_000.0,
    rope_scale=1.0,
    tied_output=True,
)


def tiny_tensors(spec: ArchitectureSpec, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    hidden, ffn, vocab = 32, 48, 50
    kv = spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, hidden),
        "output.weight": (vocab, hidden),
        "output_norm.weight": (hidden,),
    }
    for layer in range(spec.num_layers):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (hidden,),
            f"blk.{layer}.attn_q.weight": (hidden, hidden),
            f"blk.{layer}.attn_k.weight": (kv, hidden),
            f"blk.{layer}.attn_v.weight": (kv, hidden),
            f"blk.{layer}.attn_output.weight": (hidden, hidden),
            f"blk.{layer}.ffn_norm.weight": (hidden,),
            f"blk.{layer}.ffn_gate.weight": (ffn, hidden),
            f"blk.{layer}.ffn_up.weight": (ffn, hidden),
            f"blk.{layer}.ffn_down.weight": (hidden, ffn),
        }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_later_tokens_do_not_change_earlier_logits() -> None:
    spec = tiny_spec
    tensors = tiny_tensors(spec)
    logits = forward(spec, tensors, [3, 14, 15, 9, 26])
    assert logits.shape == (5, 50)
    np.testing.assert_allclose(
        forward(spec, tensors, [3, 14, 15]), logits[:3], rtol=1e-4, atol=1e-4
    )
    assert not np.allclose(forward(spec, tensors, [3, 15, 14])[2], logits[2])


def test_an_untied_output_matrix_is_used() -> None:
    spec = tiny_spec
    tensors = tiny_tensors(spec)
    tied = forward(spec, tensors, [1, 2])
    untied = forward(replace(spec, tied_output=False), tensors, [1, 2])
    assert not np.allclose(tied, untied)


def test_permuting_query_and_key_rows_turns_one_rope_style_into_the_other() -> None:
    """GGUF llama files hold permuted Q and K rows so that adjacent pairs equal the halves."""
    adjacent = tiny_spec
    tensors = tiny_tensors(adjacent)
    permuted = dict(tensors)
    order = np.concatenate([np.arange(0, 8, 2), np.arange(1, 8, 2)])
    for layer in range(adjacent.num_layers):
        for name in (f"blk.{layer}.attn_q.weight", f"blk.{layer}.attn_k.weight"):
            heads = tensors[name].reshape(-1, 8, 32)
            permuted[name] = heads[:, order].reshape(-1, 32)
    np.testing.assert_allclose(
        forward(replace(adjacent, rope_style=RopeStyle.HALVES), permuted, [7, 8, 9]),
        forward(adjacent, tensors, [7, 8, 9]),
        rtol=1e-3,
        atol=1e-3,
    )


def test_one_layer_matches_arithmetic_by_hand() -> None:
    """One token attends only to itself, so attention gives back its value head."""
    spec = replace(
        tiny_spec, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2, rope_dimensions=2
    )
    eye = np.eye(2, dtype=np.float32)
    ones = np.ones(2, np.float32)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up")
    tensors: dict[str, np.ndarray] = {f"blk.0.{name}.weight": eye for name in names}
    tensors |= {"blk.0.ffn_down.weight": eye * 0, "output_norm.weight": ones}
    tensors |= {"blk.0.attn_norm.weight": ones, "blk.0.ffn_norm.weight": ones}
    tensors["token_embd.weight"] = np.array([[3.0, 4.0], [1.0, 0.0]], np.float32)
    hidden = np.array([3.0, 4.0]) * (1 + 1 / np.sqrt(12.5))  # h + rms_norm(h)
    expected = hidden / np.sqrt((hidden**2).mean())
    assert forward(spec, tensors, [0])[0] == pytest.approx(
        [3 * expected[0] + 4 * expected[1], expected[0]], rel=1e-4
    )
