"""Norm, activation, rotation and attention of every instruction set against their references.

Tolerances: 2e-6 relative for single precision; attention 2e-3, since keys and values are stored in
half precision (11 bits); int8 ones 2e-2, and 5e-4 to the reference over the int8 rows (a value
halfway between two steps may go either way).
"""

import numpy as np
import pytest

from headrace.kernels import _native
from headrace.kernels.reference.activation import swiglu
from headrace.kernels.reference.attention import causal_attention, int8_rows
from headrace.kernels.reference.norm import rms_norm
from headrace.kernels.reference.rope import rotate


@pytest.mark.parametrize("count", [16, 50, 576, 4096])
def test_rms_norm(isa: str, count: int) -> None:
    rng = np.random.default_rng(count)
    row = (rng.normal(size=count) * 10).astype(np.float32)
    weight = rng.normal(size=count).astype(np.float32)
    out = np.empty(count, np.float32)
    _native.rms_norm(row, weight, 1e-5, out, isa)
    np.testing.assert_allclose(out, rms_norm(row[None], weight, 1e-5)[0], rtol=2e-6)


def test_swiglu_is_safe_for_extreme_gates(isa: str) -> None:
    gate = np.concatenate([np.linspace(-30, 30, 112), [-1e4, -100, 0, 100, 1e4, 88, -88, -89]])
    gate = np.concatenate([gate, np.zeros(8)]).astype(np.float32)
    up = np.random.default_rng(0).normal(size=128).astype(np.float32)
    out = np.empty(128, np.float32)
    _native.swiglu(gate, up, out, isa)
    np.testing.assert_allclose(out, swiglu(gate[None], up[None])[0], rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("style", ["adjacent", "halves"])
@pytest.mark.parametrize(("head_dim", "dimensions"), [(64, 64), (32, 16), (128, 128)])
def test_rotation(isa: str, style: str, head_dim: int, dimensions: int) -> None:
    head = np.random.default_rng(1).normal(size=head_dim).astype(np.float32)
    position = 1234
    angles = position * 10_000.0 ** (-2.0 * np.arange(dimensions // 2) / dimensions)
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    expected = rotate(
        head[None, None],
        np.array([position]),
        style=style,
        dimensions=dimensions,
        theta=10_000.0,
    )
    turned = head.copy()
    _native.rotate(turned, style == "adjacent", cosine, sine, isa)
    np.testing.assert_allclose(turned, expected[0, 0], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 128, 256])
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (15, 4), (33, 33), (257, 3), (700, 2)])
def test_attention_over_shuffled_blocks(isa: str, head_dim: int, tokens: int, rows: int) -> None:
    rng = np.random.default_rng(tokens)
    heads, kv_heads = 6, 2
    keys, values = rng.normal(size=(2, tokens, kv_heads, head_dim)).astype(np.float32)
    queries = rng.normal(size=(rows, heads, head_dim)).astype(np.float32)
    blocks = rng.permutation(60)[: -(-tokens // 16)].astype(np.int32)
    out = np.empty_like(queries)
    scaled = (queries / np.sqrt(head_dim)).astype(np.float32)
    _native.attention(scaled, keys, values, blocks, out, isa)
    np.testing.assert_allclose(out, causal_attention(queries, keys, values), atol=2e-3)


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (15, 4), (257, 3)])
def test_attention_over_int8_keys_and_values(isa: str, tokens: int, rows: int) -> None:
    rng = np.random.default_rng(tokens)
    keys, values = rng.normal(size=(2, tokens, 2, 64)).astype(np.float32)
    keys[0] = 0
    queries = rng.normal(size=(rows, 6, 64)).astype(np.float32)
    blocks = rng.permutation(60)[: -(-tokens // 16)].astype(np.int32)
    out = np.empty_like(queries)
    scaled = (queries / np.float32(8)).astype(np.float32)
    _native.attention(scaled, keys, values, blocks, out, isa, "q8")
    rounded = causal_attention(queries, int8_rows(keys), int8_rows(values))
    np.testing.assert_allclose(out, rounded, atol=5e-4)
    np.testing.assert_allclose(out, causal_attention(queries, keys, values), atol=2e-2)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("kv_type", ["f16", "q8"])
def test_values_that_are_not_finite_are_not_hidden(isa: str, kv_type: str, poison: float) -> None:
    keys = np.ones((3, 1, 16), np.float32)
    values = keys.copy()
    values[1, 0, 3] = poison
    out = np.zeros((1, 1, 16), np.float32)
    _native.attention(keys[:1], keys, values, np.zeros(1, np.int32), out, isa, kv_type)
    if kv_type == "q8" or np.isnan(poison):
        assert np.isnan(out).any()
    else:
        assert out[0, 0, 3] > 1e4  # half precision saturates
