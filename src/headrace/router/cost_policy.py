"""The cost of a choice in seconds: what is queued, what is new of this prompt, room for its KV.

    least-work   (queued + fresh) / rate + kv
    least-harm   (queued + 6 fresh) / rate + kv          kv = 0.15 k / (1 - k)

`fresh` are the prompt's tokens that the endpoint should not have, `rate` its deployment's learnt
speed, `k` the share of its KV in use. `least-work` is what the request itself waits, and so trades
a prefix of 6,000 tokens for a slightly emptier replica; computing it anew delays everybody who
decodes there and evicts what others come back for. The multiple stands for both;
docs/concepts/router.md has the measurements.
"""

from collections.abc import Mapping, Sequence

from headrace.router.alike import Alike
from headrace.router.by_slot import Costs, TokensBySlot, as_list
from headrace.router.endpoint import Endpoint
from headrace.router.lease import Work

harm_weight = 6.0  # of 2, 6 and 20 the best over all shipped scenarios (docs/benchmarks/fleet.md)


class LeastCost:
    """The least seconds, of which fresh tokens count `fresh_weight` times."""

    needs_prefixes = True

    def __init__(self, name: str, fresh_weight: float) -> None:
        self.name = name
        self.fresh_weight = fresh_weight

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """Seconds; without a call for each, because a thousand endpoints are asked."""
        weight = self.fresh_weight
        prompt = work.prefill_tokens
        if isinstance(endpoints, Alike):
            per_token_s = weight * endpoints[0].rate.seconds_per_token
            return endpoints.costs(prompt * per_token_s, per_token_s, matched)
        tokens = as_list(matched)
        return [
            (e.queued_prefill_tokens + weight * (prompt - tokens[e.slot]))
            * e.rate.seconds_per_token
            + e.pressure_s
            for e in endpoints
        ]

    def terms(self, endpoint: Endpoint, work: Work, matched_tokens: int) -> Mapping[str, float]:
        """Seconds by what causes them; the credit is what the known prefix saves."""
        per_token_s = endpoint.rate.seconds_per_token
        return {
            "queue_s": endpoint.queued_prefill_tokens * per_token_s,
            "prompt_s": self.fresh_weight * work.prefill_tokens * per_token_s,
            "prefix_credit_s": -self.fresh_weight * matched_tokens * per_token_s,
            "kv_s": endpoint.pressure_s,
        }


def least_work() -> LeastCost:
    """What the request itself waits."""
    return LeastCost("least-work", 1.0)


def least_harm() -> LeastCost:
    """What it costs everybody; the default."""
    return LeastCost("least-harm", harm_weight)
