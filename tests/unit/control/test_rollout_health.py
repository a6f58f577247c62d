"""What a new generation does worse than the old one, and what proves nothing."""

import pytest

from headrace.control.rollout_health import GenerationHealth, harm_of
from headrace.spec.rollout import RolloutPolicy
from headrace.spec.signals import first_token_bounds_s

policy = RolloutPolicy()
enough = policy.requests_min


def seen(failures: int = 0, **counts: int) -> GenerationHealth:
    """What was counted: first tokens that were `fast`, `slow` and `late`."""
    first_tokens = [0] * (len(first_token_bounds_s) + 1)
    for word, count in counts.items():
        upper_s = {"fast": 0.1, "slow": 1.0, "late": 5.0}[word]
        first_tokens[first_token_bounds_s.index(upper_s)] = count
    return GenerationHealth(sum(counts.values()) + failures, failures, tuple(first_tokens))


def test_more_failures_than_before_are_harm() -> None:
    assert "attempts failed" in harm_of(policy, seen(5, fast=enough), seen(fast=enough))
    assert harm_of(policy, seen(5, fast=enough), seen(5, fast=enough)) == ""


def test_first_tokens_that_come_later_are_harm() -> None:
    told = harm_of(policy, seen(fast=enough, slow=enough), seen(fast=2 * enough))
    assert "90th percentile of first tokens" in told
    assert harm_of(policy, seen(slow=enough), seen(slow=enough)) == ""
    assert harm_of(policy, seen(fast=enough), seen(slow=enough)) == ""


def test_fewer_first_tokens_in_time_are_harm_though_the_slowest_are_as_slow() -> None:
    new, old = seen(fast=60, late=40), seen(fast=85, late=15)
    assert "come within 2 s" in harm_of(policy, new, old)
    assert harm_of(policy, old, new) == ""
    assert harm_of(policy, seen(fast=80, late=20), old) == ""  # within what may be lost


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (seen(enough - 1), seen(fast=enough)),
        (seen(late=enough - 1), seen(fast=enough)),
        (seen(late=enough), seen(fast=enough - 1)),
        (seen(), seen()),
    ],
    ids=["few failures", "few late ones", "few of the old", "nothing"],
)
def test_few_requests_prove_nothing(new: GenerationHealth, old: GenerationHealth) -> None:
    assert harm_of(policy, new, old) == ""
