"""Causal attention with grouped query heads, over contiguous keys or over a paged KV cache."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]


def causal_attention(
    queries: Floats,  # (R, num_heads, head_dim) the last R positions of the context
    keys: Floats,  # (T, num_kv_heads, head_dim)
    values: Floats,  # (T, num_kv_heads, head_dim)
) -> Floats:
    """Row r sees positions 0 to T - R + r; (R, num_heads, head_dim)."""
    row_count, num_heads, head_dim = queries.shape
    token_count, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    wide_keys = np.repeat(keys.astype(np.float64), group, axis=1)
    wide_values = np.repeat(values.astype(np.float64), group, axis=1)
    scores = np.einsum("rhd,thd->hrt", queries.astype(np.float64), wide_keys) / np.sqrt(head_dim)
    visible = (
        np.arange(token_count)[None, :]
        <= (np.arange(token_count - row_count, token_count)[:, None])
    )
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: Floats = np.einsum("hrt,thd->rhd", weights, wide_values).astype(np.float32)
    return mixed


def int8_rows(rows: Floats) -> Floats:
    """What an int8 cache keeps of keys or values: one scale for each token and head."""
    peaks = np.abs(rows).max(axis=-1, keepdims=True)
    scales = np.where(peaks > 0, peaks / np.float32(127), np.float32(1))
    return np.asarray(np.round(rows / scales) * scales, np.float32)


def gather_context(
    cache: NDArray[np.floating],  # (num_blocks, num_kv_heads, block_size_tokens, head_dim)
    block_table: Integers,  # (blocks of one sequence,)
    token_count: int,
) -> Floats:
    """One sequence's keys or values in order; (token_count, num_kv_heads, head_dim)."""
    blocks = cache[block_table].transpose(0, 2, 1, 3)  # (blocks, block_size, kv_heads, head_dim)
    return blocks.reshape(-1, *blocks.shape[2:])[:token_count].astype(np.float32)


def paged_attention(
    queries: Floats,  # (R, num_heads, head_dim) of all sequences, laid end to end
    key_cache: NDArray[np.floating],  # (num_blocks, num_kv_heads, block_size_tokens, head_dim)
    value_cache: NDArray[np.floating],  # the same shape
    *,
    row_starts: Integers,  # (S + 1,)
    context_lens: Integers,  # (S,) this step's rows included
    block_ids: Integers,  # (B,) block tables laid end to end
    block_starts: Integers,  # (S + 1,)
) -> Floats:
    """Attention of a ragged batch whose keys and values are in the cache already."""
    output = np.zeros_like(queries)
    for sequence, context_len in enumerate(context_lens):
        rows = slice(row_starts[sequence], row_starts[sequence + 1])
        table = block_ids[block_starts[sequence] : block_starts[sequence + 1]]
        keys = gather_context(key_cache, table, int(context_len))
        values = gather_context(value_cache, table, int(context_len))
        output[rows] = causal_attention(queries[rows], keys, values)
    return output
