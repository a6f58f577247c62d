"""The compiled sampler against its NumPy twin: the same token, and its log-probability to 1e-4."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.kernels import _native
from headrace.kernels.reference.sampler import Edits, no_edits, sample, top_tokens

Floats = NDArray[np.float32]

vocab_sizes = [3, 1000, 49152]


def native(logits: Floats, isa: str, **params: Any) -> tuple[int, float]:
    return native_with_top(logits, isa, **params)[:2]


def native_with_top(
    logits: Floats, isa: str, top_count: int = 0, **params: Any
) -> tuple[int, float, list[int], list[float]]:
    edits: Edits = params.get("edits", no_edits)
    ids, factors, addends = edits
    return _native.sample(
        logits,
        params.get("temperature", 1.0),
        params.get("top_k", 0),
        params.get("top_p", 1.0),
        params.get("min_p", 0.0),
        params.get("seed", 0),
        params.get("position", 0),
        ids,
        factors,
        addends,
        params.get("mask"),
        top_count,
        isa,
        params.get("typical_p", 1.0),
        params.get("xtc_threshold", 1.0),
        params.get("xtc_probability", 0.0),
    )


@pytest.mark.parametrize("vocab_size", vocab_sizes)
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.3, "top_k": 2},
        {"temperature": 1.5, "top_k": 40},
        {"temperature": 1.0, "top_k": 700},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 2.0, "top_p": 0.5},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 1.0, "top_p": 0.99, "min_p": 0.1},
        {"temperature": 1.0, "typical_p": 0.2},
        {"temperature": 0.7, "typical_p": 0.9},
        {"temperature": 2.0, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.1},
        {"temperature": 1.0, "top_k": 50, "typical_p": 0.5},
        {"temperature": 1.0, "xtc_threshold": 0.1, "xtc_probability": 1.0},
        {"temperature": 2.0, "xtc_threshold": 0.02, "xtc_probability": 0.5, "min_p": 0.02},
        {"temperature": 1.5, "top_k": 9, "xtc_threshold": 0.05, "xtc_probability": 0.7},
    ],
)
def test_the_token_is_that_of_the_reference(
    isa: str, vocab_size: int, params: dict[str, Any]
) -> None:
    rng = np.random.default_rng(vocab_size)
    for seed in range(6):
        logits = (rng.normal(size=vocab_size) * 4).astype(np.float32)
        expected = sample(logits, seed=seed, position=seed * 7, **params)
        token_id, logprob = native(logits, isa, seed=seed, position=seed * 7, **params)
        assert token_id == expected.token_id
        assert logprob == pytest.approx(expected.logprob, abs=1e-4)


def test_ties_go_to_the_lower_id(isa: str) -> None:
    logits = np.zeros(2000, np.float32)
    logits[[5, 900]] = 3.0
    assert native(logits, isa, temperature=0.0)[0] == 5
    assert native(logits, isa, top_k=1)[0] == 5
    kept = {native(logits, isa, top_k=3, seed=seed)[0] for seed in range(64)}
    assert kept == {0, 5, 900}
    assert native(logits, isa, top_p=1e-6)[0] == 5


def test_draws_follow_the_distribution(isa: str) -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    draws = [native(logits, isa, seed=9, position=i)[0] for i in range(4000)]
    shares = np.bincount(draws, minlength=3) / len(draws)
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.03)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 17, 999])
def test_a_logit_that_is_not_finite_gives_no_token(isa: str, poison: float, place: int) -> None:
    logits = np.zeros(1000, np.float32)
    logits[place] = poison
    token_id, logprob = native(logits, isa)
    assert token_id == -1
    assert np.isnan(logprob)


def test_typical_sampling_leaves_out_what_surprises_too_little(isa: str) -> None:
    # One token of a quarter of the mass, a thousand of the rest: the peak is far from typical.
    logits = np.zeros(1001, np.float32)
    logits[7] = np.log(300.0)
    drawn = {native(logits, isa, seed=seed, typical_p=0.3)[0] for seed in range(50)}
    assert 7 not in drawn
    assert len(drawn) > 10


def test_min_p_measures_against_the_likeliest_that_is_left(isa: str) -> None:
    logits = np.zeros(1001, np.float32)
    logits[7] = np.log(300.0)
    for seed in range(20):
        params: dict[str, Any] = {"seed": seed, "typical_p": 0.3, "min_p": 0.5}
        assert native(logits, isa, **params)[0] == sample(logits, temperature=1, **params).token_id


def test_xtc_leaves_out_all_top_choices_but_the_least_likely(isa: str) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], np.float32))
    kept = {"xtc_threshold": 0.1, "xtc_probability": 1.0}
    drawn = {native(logits, isa, seed=seed, **kept)[0] for seed in range(200)}
    assert drawn == {2, 3, 4}


def test_xtc_leaves_a_single_top_choice(isa: str) -> None:
    logits = np.log(np.array([0.97, 0.02, 0.01], np.float32))
    drawn = [
        native(logits, isa, seed=seed, xtc_threshold=0.1, xtc_probability=1.0)[0]
        for seed in range(100)
    ]
    assert drawn.count(0) > 80


def test_xtc_acts_as_often_as_it_is_asked_to(isa: str) -> None:
    logits = np.log(np.array([0.5, 0.5], np.float32))
    logits[0] += 1e-3  # the likelier of the two is what XTC leaves out
    drawn = [
        native(logits, isa, seed=3, position=i, xtc_threshold=0.1, xtc_probability=0.5)[0]
        for i in range(2000)
    ]
    assert abs(drawn.count(0) / len(drawn) - 0.25) < 0.04


def test_xtc_that_never_acts_changes_no_draw(isa: str) -> None:
    logits = np.random.default_rng(5).normal(size=900).astype(np.float32) * 3
    for seed in range(30):
        plain = native(logits, isa, seed=seed, top_k=40)
        assert native(logits, isa, seed=seed, top_k=40, xtc_probability=1.0) == plain


def test_large_seeds_and_positions_are_taken_whole(isa: str) -> None:
    logits = np.random.default_rng(0).normal(size=500).astype(np.float32)
    for seed in (2**63 + 11, 2**64 - 1):
        expected = sample(logits, temperature=1.0, seed=seed, position=2**40)
        assert native(logits, isa, seed=seed, position=2**40)[0] == expected.token_id


sampling_choices: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.5, "top_k": 40},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.0, "typical_p": 0.7},
    {"temperature": 1.0, "xtc_threshold": 0.05, "xtc_probability": 0.6},
]


def random_edits(rng: np.random.Generator, vocab_size: int) -> Edits:
    ids = rng.permutation(vocab_size)[: vocab_size // 3].astype(np.int32)
    factors = rng.uniform(0.5, 2, len(ids)).astype(np.float32)
    addends = rng.uniform(-5, 5, len(ids)).astype(np.float32)
    addends[::3] = -np.inf
    return ids, factors, addends


def mask_of(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    padded = np.zeros((len(allowed) + 31) // 32 * 32, np.uint8)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("vocab_size", vocab_sizes)
@pytest.mark.parametrize("params", sampling_choices)
def test_edited_and_masked_logits_give_the_token_of_the_reference(
    isa: str, vocab_size: int, params: dict[str, Any]
) -> None:
    rng = np.random.default_rng(vocab_size + 1)
    for seed in range(6):
        logits = (rng.normal(size=vocab_size) * 4).astype(np.float32)
        allowed = rng.random(vocab_size) < (0.5 if seed % 2 else 0.002)
        allowed[seed % vocab_size] = True
        mask = mask_of(allowed) if seed % 3 else None
        arguments = {**params, "seed": seed, "edits": random_edits(rng, vocab_size), "mask": mask}
        expected = sample(logits, **arguments)
        token_id, logprob = native(logits, isa, **arguments)
        assert token_id == expected.token_id
        assert logprob == pytest.approx(expected.logprob, abs=1e-4, nan_ok=True)


@pytest.mark.parametrize("params", sampling_choices)
def test_a_banned_token_is_never_drawn(isa: str, params: dict[str, Any]) -> None:
    logits = np.zeros(3000, np.float32)
    allowed = np.zeros(3000, bool)
    allowed[[2, 1700]] = True
    drawn = {
        native(logits, isa, seed=seed, mask=mask_of(allowed), **params)[0] for seed in range(64)
    }
    assert drawn <= {2, 1700}


def test_where_every_token_is_banned_there_is_none(isa: str) -> None:
    logits = np.zeros(70, np.float32)
    assert native(logits, isa, mask=np.zeros(3, np.uint32))[0] == -2


@pytest.mark.parametrize("vocab_size", vocab_sizes)
def test_top_tokens_are_those_of_the_raw_logits(isa: str, vocab_size: int) -> None:
    rng = np.random.default_rng(3)
    logits = np.round(rng.normal(size=vocab_size) * 4).astype(np.float32)  # many ties
    count = min(20, vocab_size)
    edits = random_edits(rng, vocab_size)
    ids, logprobs = native_with_top(logits, isa, count, edits=edits, temperature=0.0)[2:]
    expected = top_tokens(logits, count)
    assert ids == [token.token_id for token in expected]
    assert logprobs == pytest.approx([token.logprob for token in expected], abs=1e-4)
