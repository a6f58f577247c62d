"""The compiled sampler against its NumPy twin: the same token, and its log-probability to 1e-4."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.kernels import _native
from headrace.kernels.reference.sampler import sample

Floats = NDArray[np.float32]

vocab_sizes = [3, 1000, 49152]


def native(logits: Floats, isa: str, **params: Any) -> tuple[int, float]:
    return _native.sample(
        logits,
        params.get("temperature", 1.0),
        params.get("top_k", 0),
        params.get("top_p", 1.0),
        params.get("min_p", 0.0),
        params.get("seed", 0),
        params.get("position", 0),
        isa,
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


def test_large_seeds_and_positions_are_taken_whole(isa: str) -> None:
    logits = np.random.default_rng(0).normal(size=500).astype(np.float32)
    for seed in (2**63 + 11, 2**64 - 1):
        expected = sample(logits, temperature=1.0, seed=seed, position=2**40)
        assert native(logits, isa, seed=seed, position=2**40)[0] == expected.token_id
