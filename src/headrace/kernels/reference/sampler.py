"""One token from one row of logits, by the exact rules of docs/concepts/sampling.md.

    edits of single logits, then a mask of allowed tokens; greedy if temperature == 0; else
    logits / temperature -> keep top-k -> softmax -> keep typical -> keep top-p -> keep min-p
    -> leave out top choices (XTC) -> draw
    u = (mix64(seed + 0x9E3779B97F4A7C15 * (position + 1)) >> 11) * 2^-53

The random number is a pure function of (seed, position) (Salmon et al. 2011, counter-based), so a
request's tokens do not depend on who else is in the batch. All arithmetic is in double precision on
float32 inputs. Ties go to the lower token id everywhere.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

mask_64 = (1 << 64) - 1
golden_gamma = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, splitmix64's increment
not_finite_token_id = -1
all_banned_token_id = -2
xtc_stream = 0xD1B54A32D192ED03  # tells XTC's random numbers from the draws'
no_edits = (np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.float32))

Edits = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]
Kept = tuple[NDArray[np.intp], Doubles]  # token ids with their probabilities


class SampledToken(NamedTuple):
    """The chosen token and its log-probability under the unmodified softmax of the raw logits."""

    token_id: int
    logprob: float


def sample(
    logits: NDArray[np.float32],  # (vocab_size,)
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    position: int = 0,
    edits: Edits = no_edits,  # (ids, factors, addends)
    mask: NDArray[np.uint32] | None = None,  # bit i % 32 of word i // 32 allows token i
    typical_p: float = 1.0,
    xtc_threshold: float = 1.0,
    xtc_probability: float = 0.0,
) -> SampledToken:
    """Choose a token; with a NaN log-probability id -1 if a logit is not finite, -2 if no token
    is allowed."""
    if not np.isfinite(logits).all():
        return SampledToken(not_finite_token_id, float("nan"))
    raw = logits.astype(np.float64)
    edited = edit(raw, edits, mask)
    if not np.isfinite(edited).any():
        return SampledToken(all_banned_token_id, float("nan"))
    if temperature == 0:
        token_id = int(np.argmax(edited))
    else:
        kept = kept_distribution(edited / temperature, top_k, top_p, min_p, typical_p)
        if uniform(seed ^ xtc_stream, position) < xtc_probability:
            kept = without_top_choices(*kept, xtc_threshold)
        token_id = draw(*kept, uniform(seed, position))
    return SampledToken(token_id, log_probability(raw, token_id))


def edit(raw: Doubles, edits: Edits, mask: NDArray[np.uint32] | None) -> Doubles:
    """The logits after the request's edits; a banned token has minus infinity."""
    edited = raw.copy()
    for token_id, factor, addend in zip(*edits, strict=True):
        logit = edited[token_id]
        scaled = logit / factor if logit > 0 else logit * factor
        edited[token_id] = np.float32(scaled + addend)
    if mask is not None:
        tokens = np.arange(len(raw))
        allowed = mask[tokens // 32] >> (tokens % 32).astype(np.uint32) & np.uint32(1)
        edited[allowed == 0] = -np.inf
    return edited


def top_tokens(logits: NDArray[np.float32], count: int) -> list[SampledToken]:
    """The likeliest tokens by the raw logits, the best first; ties by lower id."""
    raw = logits.astype(np.float64)
    best = np.argsort(-raw, kind="stable")[:count].tolist()
    return [SampledToken(token_id, log_probability(raw, token_id)) for token_id in best]


def kept_distribution(
    scaled: Doubles, top_k: int, top_p: float, min_p: float, typical_p: float = 1.0
) -> Kept:
    """The token ids that survive, ascending, with their unnormalised probabilities."""
    order = np.argsort(-scaled, kind="stable")  # descending; ties by lower id
    if top_k > 0:
        order = order[:top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    probabilities = weights / weights.sum()
    if typical_p < 1:
        typical = typical_places(probabilities, typical_p)
        order, probabilities = order[typical], probabilities[typical]
        probabilities = probabilities / probabilities.sum()
    if top_p < 1:
        reached = np.cumsum(probabilities) >= top_p
        count = int(np.argmax(reached)) + 1 if reached.any() else len(order)
        order, probabilities = order[:count], probabilities[:count]
    survives = (probabilities >= min_p * probabilities[0]) & (probabilities > 0)
    order, probabilities = order[survives], probabilities[survives]
    ascending = np.argsort(order)
    return order[ascending], probabilities[ascending]


def typical_places(probabilities: Doubles, typical_p: float) -> NDArray[np.intp]:
    """The tokens whose surprise is nearest to the entropy, up to a mass, in the order given.

    Meister, Pimentel, Wiher, Cotterell: Locally Typical Sampling (2023)."""
    with np.errstate(divide="ignore"):
        surprise = -np.log(probabilities)
    possible = probabilities > 0
    entropy = float(np.sum(probabilities[possible] * surprise[possible]))
    nearest = np.argsort(np.abs(surprise - entropy), kind="stable")  # ties: the likelier first
    count = int(np.searchsorted(np.cumsum(probabilities[nearest]), typical_p)) + 1
    return np.sort(nearest[:count])


def without_top_choices(kept_ids: NDArray[np.intp], probabilities: Doubles, least: float) -> Kept:
    """XTC: of the tokens whose probability reaches `least`, only the least likely stays."""
    reaches = probabilities >= least * probabilities.sum()
    if not reaches.any():
        return kept_ids, probabilities
    top = np.flatnonzero(reaches)
    stays = ~reaches
    stays[top[len(top) - 1 - np.argmin(probabilities[top][::-1])]] = True  # of ties the higher id
    return kept_ids[stays], probabilities[stays]


def draw(kept_ids: NDArray[np.intp], probabilities: Doubles, uniform_number: float) -> int:
    """The first kept token, in id order, whose running sum passes `uniform_number` of the total."""
    cumulative = np.cumsum(probabilities)
    passed = cumulative > uniform_number * cumulative[-1]
    return int(kept_ids[int(np.argmax(passed)) if passed.any() else -1])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, a pure function of its arguments."""
    return (mix64(seed + golden_gamma * (position + 1)) >> 11) * 2.0**-53


def mix64(value: int) -> int:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers."""
    value &= mask_64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & mask_64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & mask_64
    return value ^ value >> 31


def log_probability(raw: Doubles, token_id: int) -> float:
    """log softmax of `raw` at `token_id`."""
    peak = raw.max()
    return float(raw[token_id] - peak - np.log(np.exp(raw - peak).sum()))
