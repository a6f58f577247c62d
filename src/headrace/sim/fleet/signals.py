"""What a simulated gateway counts of one deployment for the autoscaler.

The counts and the moments of counting are those of `gateway/signals.py`: work that arrives by what
a gateway knows of it, first tokens since they were asked.
"""

from bisect import bisect_left

from headrace.gateway.admission import expected_output_tokens
from headrace.sim.fleet.request import SimRequest
from headrace.spec.signals import first_token_bounds_s, inter_token_bounds_s


class TrafficSignals:
    """Totals that only grow."""

    def __init__(self) -> None:
        self.arrived_requests = 0
        self.arrived_tokens = 0
        self.first_tokens = [0] * (len(first_token_bounds_s) + 1)
        self.inter_tokens = [0] * (len(inter_token_bounds_s) + 1)

    def arrived(self, request: SimRequest) -> None:
        """A request was admitted."""
        self.arrived_requests += 1
        self.arrived_tokens += request.prompt_tokens
        self.arrived_tokens += min(request.max_tokens, expected_output_tokens)

    def first_output(self, seconds: float) -> None:
        """A replica's first output came so long after it was asked."""
        self.first_tokens[bisect_left(first_token_bounds_s, seconds)] += 1

    def streamed(self, seconds: float, tokens: int) -> None:
        """A replica's stream ended, so long after its first token, with so many in all."""
        if tokens >= 2:
            self.inter_tokens[bisect_left(inter_token_bounds_s, seconds / (tokens - 1))] += 1
