"""The sampler's documented rules, one by one."""

import math

import numpy as np
import pytest

from headrace.kernels.reference.sampler import kept_distribution, mix64, sample, uniform


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities, np.float64)).astype(np.float32)


def kept(logits: np.ndarray, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    ids, _ = kept_distribution(logits.astype(np.float64), top_k, top_p, min_p)
    return [int(token_id) for token_id in ids]


def test_greedy_takes_the_largest_and_the_lowest_id_of_equals() -> None:
    assert sample(np.array([1, 5, 3, 5], np.float32), temperature=0).token_id == 1


def test_top_k_keeps_the_largest_and_the_lower_id_of_equals() -> None:
    assert kept(np.array([2, 1, 3, 2, 2], np.float32), top_k=3) == [0, 2, 3]


def test_top_p_keeps_the_smallest_prefix_that_reaches_p() -> None:
    logits = logits_of(0.1, 0.4, 0.2, 0.3)
    assert kept(logits, top_p=0.65) == [1, 3]
    assert kept(logits, top_p=0.75) == [1, 2, 3]


def test_top_p_keeps_at_least_one() -> None:
    assert kept(logits_of(0.3, 0.7), top_p=1e-9) == [1]


def test_top_p_counts_probabilities_after_top_k() -> None:
    assert kept(logits_of(0.5, 0.3, 0.2), top_k=2, top_p=0.6) == [0]


def test_min_p_is_relative_to_the_most_probable() -> None:
    assert kept(logits_of(0.6, 0.25, 0.15), min_p=0.3) == [0, 1]


def test_the_draw_walks_kept_tokens_in_id_order() -> None:
    logits = logits_of(0.25, 0.5, 0.25)
    for position in range(200):
        number = uniform(7, position)
        expected = 0 if number < 0.25 else 1 if number < 0.75 else 2
        if min(abs(number - 0.25), abs(number - 0.75)) > 1e-6:
            assert sample(logits, temperature=1, seed=7, position=position).token_id == expected


def test_frequencies_follow_the_distribution_at_a_temperature() -> None:
    logits = np.array([0.0, 1.0, 2.0], np.float32)
    draws = 6000
    counts = np.zeros(3)
    for position in range(draws):
        counts[sample(logits, temperature=0.5, seed=1, position=position).token_id] += 1
    expected = np.exp([0.0, 2.0, 4.0]) / np.exp([0.0, 2.0, 4.0]).sum()
    np.testing.assert_allclose(counts / draws, expected, atol=0.02)


def test_random_numbers_are_those_of_splitmix64() -> None:
    # The first outputs of splitmix64 seeded with 1234567, as published with Rosetta Code's task.
    golden = 0x9E3779B97F4A7C15
    outputs = [mix64(1234567 + golden * (position + 1)) for position in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert uniform(1234567, 0) == (outputs[0] >> 11) * 2.0**-53


def test_seed_and_position_wrap_at_64_bits() -> None:
    assert uniform(2**64 - 1, 3) == uniform(-1, 3)


def test_logprob_is_of_the_unmodified_distribution() -> None:
    chosen = sample(logits_of(0.2, 0.8), temperature=0.1, top_k=1)
    assert chosen.token_id == 1
    assert chosen.logprob == pytest.approx(math.log(0.8), abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_gives_minus_one(bad: float) -> None:
    for temperature in (0.0, 1.0):
        chosen = sample(np.array([1, bad, 0], np.float32), temperature=temperature)
        assert chosen.token_id == -1
        assert math.isnan(chosen.logprob)
