"""The cost of a choice in seconds: what is queued, what is new of this prompt, room for its KV.

    least-work   (queued + fresh) / rate + kv
    least-harm   (queued + w fresh) / rate + kv          kv = 0.15 k / (1 - k)

    w = 6 (n + 8) / (mean(n) + 8)   where a candidate has half of the prompt or more
    w = 6                           else

`fresh` are the prompt's tokens that the endpoint should not have, `rate` its deployment's learnt
speed, `k` the share of its KV in use, `n` the requests at the endpoint. `least-work` is what the
request itself waits, and so trades a prefix of 6,000 tokens for a slightly emptier replica;
computing it anew delays everybody who decodes there, by so much the more as there are many, and
evicts what others come back for. The weight stands for both; docs/concepts/router.md has the
measurements. A prefix that is new everywhere stays where it is placed now, so that the requests of
the moment say little of who should have it.
"""

from collections.abc import Sequence

from headrace.router.alike import Alike
from headrace.router.by_slot import Costs, TokensBySlot, as_list, most_tokens
from headrace.router.candidates import owner_tokens_min
from headrace.router.endpoint import Endpoint
from headrace.router.lease import Work
from headrace.router.policy import Terms

harm_weight = 6.0  # of 2, 6 and 20 the best over all shipped scenarios (docs/benchmarks/fleet.md)
crowd_damping = 8.0  # requests more at each, so that two of an idle fleet are no crowd


class LeastCost:
    """The least seconds, of which fresh tokens count `fresh_weight` times.

    Where one of them has most of the prompt and `sees_crowds`, the weight goes with the requests
    that are in flight at each."""

    needs_prefixes = True

    def __init__(self, name: str, fresh_weight: float, *, sees_crowds: bool = False) -> None:
        self.name = name
        self.fresh_weight = fresh_weight
        self.sees_crowds = sees_crowds

    def costs(self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot) -> Costs:
        """Seconds; without a call for each, because a thousand endpoints are asked."""
        prompt = work.prefill_tokens
        weight, per_request = self._weights(endpoints, work, matched)
        if isinstance(endpoints, Alike):
            per_token_s = endpoints[0].rate.seconds_per_token
            return endpoints.costs(prompt, weight, per_request, per_token_s, matched)
        tokens = as_list(matched)
        return [
            (
                e.queued_prefill_tokens
                + (weight + per_request * e.in_flight_requests) * (prompt - tokens[e.slot])
            )
            * e.rate.seconds_per_token
            + e.pressure_s
            for e in endpoints
        ]

    def terms(
        self,
        endpoints: Sequence[Endpoint],
        places: Sequence[int],
        work: Work,
        matched: TokensBySlot,
    ) -> list[Terms]:
        """Seconds by what causes them; the credit is what the known prefix saves."""
        weight, per_request = self._weights(endpoints, work, matched)
        even, prompt = self.fresh_weight, work.prefill_tokens
        found: list[Terms] = []
        for at in places:
            endpoint = endpoints[at]
            per_token_s = endpoint.rate.seconds_per_token
            known = int(matched[endpoint.slot])
            terms = {
                "queue_s": endpoint.queued_prefill_tokens * per_token_s,
                "prompt_s": even * prompt * per_token_s,
                "prefix_credit_s": -even * known * per_token_s,
                "kv_s": endpoint.pressure_s,
            }
            if per_request:
                more = weight + per_request * endpoint.in_flight_requests - even
                terms["crowd_s"] = more * (prompt - known) * per_token_s
            found.append(terms)
        return found

    def _weights(
        self, endpoints: Sequence[Endpoint], work: Work, matched: TokensBySlot
    ) -> tuple[float, float]:
        """What a fresh token weighs, and how much more for each request that is in flight."""
        even = self.fresh_weight, 0.0
        if not self.sees_crowds:
            return even
        if isinstance(endpoints, Alike):
            known = endpoints.tokens(matched)
        else:
            known = [int(matched[endpoint.slot]) for endpoint in endpoints]
        if most_tokens(known) < owner_tokens_min(work):
            return even
        if isinstance(endpoints, Alike):
            total = endpoints.requests_total()
        else:
            total = sum(endpoint.in_flight_requests for endpoint in endpoints)
        per_request = self.fresh_weight / (total / len(endpoints) + crowd_damping)
        return crowd_damping * per_request, per_request


def least_work() -> LeastCost:
    """What the request itself waits."""
    return LeastCost("least-work", 1.0)


def least_harm() -> LeastCost:
    """What it costs everybody; the default."""
    return LeastCost("least-harm", harm_weight, sees_crowds=True)
