"""Norm, rope, activation and attention against scalar loops written from their formulas."""

import math

import numpy as np
import pytest

from headrace.kernels.reference.activation import swiglu
from headrace.kernels.reference.attention import causal_attention, paged_attention
from headrace.kernels.reference.norm import rms_norm
from headrace.kernels.reference.rope import rotate


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_rms_norm_of_each_row_has_mean_square_one_before_its_weight() -> None:
    rows, weight = normal(0, 4, 64) * 7, normal(1, 64)
    normed = rms_norm(rows, weight, 1e-5)
    for row, result in zip(rows, normed, strict=True):
        root = math.sqrt(sum(float(x) ** 2 for x in row) / 64 + 1e-5)
        np.testing.assert_allclose(result, row / root * weight, rtol=1e-6)


def test_swiglu_is_safe_where_the_exponential_would_overflow() -> None:
    gate = np.array([[-1e4, -2.0, 0.0, 3.0, 1e4]], np.float32)
    up = np.full((1, 5), 2.0, np.float32)
    expected = [[-0.0, -2 / (1 + math.exp(2)) * 2, 0.0, 3 / (1 + math.exp(-3)) * 2, 2e4]]
    np.testing.assert_allclose(swiglu(gate, up), expected, rtol=1e-6)


@pytest.mark.parametrize("style", ["adjacent", "halves"])
@pytest.mark.parametrize("dimensions", [8, 6])
def test_rope_turns_each_pair_by_its_angle(style: str, dimensions: int) -> None:
    heads, positions = normal(2, 3, 2, 8), np.array([0, 1, 77], np.int64)
    turned = rotate(heads, positions, style=style, dimensions=dimensions, theta=100.0, scale=2.0)
    expected = heads.copy()
    half = dimensions // 2
    for row, position in enumerate(positions):
        for pair in range(half):
            first, second = (2 * pair, 2 * pair + 1) if style == "adjacent" else (pair, pair + half)
            angle = position / 2.0 * 100.0 ** (-2 * pair / dimensions)
            turn = complex(math.cos(angle), math.sin(angle))
            for head in range(2):
                value = complex(heads[row, head, first], heads[row, head, second]) * turn
                expected[row, head, first], expected[row, head, second] = value.real, value.imag
    np.testing.assert_allclose(turned, expected, rtol=1e-5, atol=1e-6)


def test_an_unknown_rope_style_is_named() -> None:
    with pytest.raises(ValueError, match="diagonal"):
        rotate(normal(0, 1, 1, 4), np.zeros(1, np.int64), style="diagonal", dimensions=4, theta=1.0)


def slow_attention(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    rows, num_heads, head_dim = queries.shape
    tokens, num_kv_heads, _ = keys.shape
    output = np.zeros_like(queries)
    for row in range(rows):
        for head in range(num_heads):
            kv_head = head // (num_heads // num_kv_heads)
            seen = tokens - rows + row + 1
            scores = [
                math.exp(float(queries[row, head] @ keys[t, kv_head]) / math.sqrt(head_dim))
                for t in range(seen)
            ]
            for t in range(seen):
                output[row, head] += values[t, kv_head] * (scores[t] / sum(scores))
    return output


def test_attention_is_causal_and_shares_key_heads_by_group() -> None:
    queries, keys, values = normal(3, 4, 6, 8), normal(4, 9, 2, 8), normal(5, 9, 2, 8)
    np.testing.assert_allclose(
        causal_attention(queries, keys, values),
        slow_attention(queries, keys, values),
        rtol=1e-4,
        atol=1e-6,
    )


def test_paged_attention_equals_contiguous_attention_for_any_block_table() -> None:
    block_size, keys, values = 4, normal(6, 13, 2, 8), normal(7, 13, 2, 8)
    tables, context_lens = [[5, 0, 3], [2]], [10, 3]
    key_cache, value_cache = (np.full((6, 2, block_size, 8), np.nan, np.float32) for _ in "kv")
    first_token = 0
    for table, context_len in zip(tables, context_lens, strict=True):
        for index in range(context_len):
            block, slot = table[index // block_size], index % block_size
            key_cache[block, :, slot] = keys[first_token + index]
            value_cache[block, :, slot] = values[first_token + index]
        first_token += context_len
    queries = normal(8, 5, 6, 8)  # 4 rows of a chunk, 1 decode row
    mixed = paged_attention(
        queries,
        key_cache,
        value_cache,
        row_starts=np.array([0, 4, 5], np.int32),
        context_lens=np.array(context_lens, np.int32),
        block_ids=np.array([5, 0, 3, 2], np.int32),
        block_starts=np.array([0, 3, 4], np.int32),
    )
    np.testing.assert_allclose(
        mixed[:4], slow_attention(queries[:4], keys[:10], values[:10]), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        mixed[4:], slow_attention(queries[4:], keys[10:], values[10:]), rtol=1e-4, atol=1e-6
    )
