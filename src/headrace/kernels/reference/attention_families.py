"""Attention with what some families add: windows, capped scores, sinks, sight of all tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRule:
    """Who sees what, and how strongly."""

    scale: float = 0.0  # of scores; 0: one over the root of head_dim
    window_tokens: int = 0  # a row sees that many tokens, itself included; 0: all before it
    softcap: float = 0.0  # scores are squeezed below it; 0 is off
    sinks: Floats | None = None  # (num_heads,) scores without a value
    causal: bool = True


def attend(
    queries: Floats,  # (R, num_heads, head_dim) the last R positions of the context
    keys: Floats,  # (T, num_kv_heads, head_dim)
    values: Floats,  # (T, num_kv_heads, head_dim)
    rule: AttentionRule,
) -> Floats:
    """The mix of values that each query sees; (R, num_heads, head_dim)."""
    row_count, num_heads, head_dim = queries.shape
    token_count, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    wide_keys = np.repeat(keys.astype(np.float64), group, axis=1)
    wide_values = np.repeat(values.astype(np.float64), group, axis=1)
    scores = np.einsum("rhd,thd->hrt", queries.astype(np.float64), wide_keys)
    scores *= rule.scale or 1.0 / np.sqrt(head_dim)
    if rule.softcap:
        scores = rule.softcap * np.tanh(scores / rule.softcap)
    distance = (
        np.arange(token_count - row_count, token_count)[:, None] - np.arange(token_count)[None, :]
    )
    hidden = (distance < 0) & rule.causal
    if rule.window_tokens:
        hidden |= distance >= rule.window_tokens
    scores = np.where(hidden, -np.inf, scores)
    peak = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - peak)
    total = weights.sum(axis=-1, keepdims=True)
    if rule.sinks is not None:
        total += np.exp(rule.sinks.astype(np.float64)[:, None, None] - peak)
    mixed: Floats = np.einsum("hrt,thd->rhd", weights / total, wide_values).astype(np.float32)
    return mixed
