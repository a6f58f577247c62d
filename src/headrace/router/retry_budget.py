"""Bounds retries over all requests, so that a failing fleet is not hit harder for failing.

    retries <= reserve + refill_per_s * seconds + requests / requests_per_retry

The reserve and the refill let a quiet gateway retry every request of a replica that dies.
"""

requests_per_retry_default = 10  # a tenth of the traffic
reserve_retries = 256  # all that one replica may be running when it dies
refill_retries_per_s = 10.0


class RetryBudget:
    """A bucket of retries that requests and time fill."""

    def __init__(
        self,
        now_s: float,
        *,
        requests_per_retry: int = requests_per_retry_default,
        reserve: int = reserve_retries,
        refill_per_s: float = refill_retries_per_s,
    ) -> None:
        self._cost = requests_per_retry
        self._capacity = float(reserve * requests_per_retry)
        self._refill_per_s = refill_per_s * requests_per_retry
        self._balance = self._capacity  # in requests, so that adding one is exact
        self._refilled_s = now_s

    def deposit(self) -> None:
        """A request arrived."""
        if self._balance < self._capacity:
            self._balance = min(self._capacity, self._balance + 1)

    def withdraw(self, now_s: float) -> bool:
        """Take one retry; False if none is left."""
        elapsed_s = max(0.0, now_s - self._refilled_s)
        self._refilled_s = now_s
        self._balance = min(self._capacity, self._balance + elapsed_s * self._refill_per_s)
        if self._balance < self._cost:
            return False
        self._balance -= self._cost
        return True
