"""Retries are bounded by requests, time and a reserve."""

from headrace.router.retry_budget import RetryBudget


def test_requests_earn_a_tenth_of_a_retry() -> None:
    budget = RetryBudget(0.0, reserve=5, refill_per_s=0)
    assert [budget.withdraw(0.0) for _ in range(6)] == [True] * 5 + [False]
    for _ in range(10):
        budget.deposit()
    assert [budget.withdraw(0.0) for _ in range(2)] == [True, False]


def test_time_refills_up_to_the_reserve_only() -> None:
    budget = RetryBudget(0.0, reserve=2, refill_per_s=1)
    assert budget.withdraw(0.0)
    assert budget.withdraw(0.0)
    assert not budget.withdraw(0.5)
    assert budget.withdraw(1.0)
    assert [budget.withdraw(1000.0) for _ in range(3)] == [True, True, False]
