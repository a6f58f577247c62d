"""Whether a prompt is computed at another endpoint than the one that answers, and at which.

    whole   6 fresh tokens at D + what is queued there     what it costs everybody who decodes there
    split   fresh tokens at P + what is queued there       nobody decodes at P
            + what moving their KV costs

All in seconds of the deployment's learnt speed (`cost_policy`). Only prompts with more tokens that
D lacks than the deployment's threshold are looked at; P and D are of one generation of one
deployment, so that the one can use the other's KV. An endpoint that is half an engine always needs
another for the prompt.

The 6 is `least_harm`'s for a prompt that nobody has. Its weight by the requests in flight, for one
that somebody has, compares endpoints which all decode with the mean of them: nobody decodes at P,
so there is no mean to compare D with, and D was chosen by that weight already. No simulated fleet
splits, so that another number could not be told from this one.
"""

from collections.abc import Collection

from headrace.router.by_slot import TokensBySlot
from headrace.router.candidates import usable_for_prompts
from headrace.router.cost_policy import least_harm
from headrace.router.decision_log import CandidateView, Decision, DecisionLog
from headrace.router.endpoint import Endpoint
from headrace.router.endpoint_set import EndpointSet, Pool
from headrace.router.lease import Lease, Work
from headrace.router.picker import match

prefill_role, decode_role = "prefill", "decode"
moved_share = 0.05  # of computing a token's KV, that moving it costs; docs/benchmarks has less
policy_name = "split"
_whole = least_harm()


class Splitter:
    """Plans the first of two legs, once the second has its endpoint."""

    def __init__(self, endpoints: EndpointSet, log: DecisionLog | None = None) -> None:
        self._endpoints = endpoints
        self._log = log  # None: no decision is kept

    def lease(
        self, answering: Lease, work: Work, now_s: float, excluded: Collection[str] = ()
    ) -> Lease | None:
        """Where the prompt is computed first; None: where it is answered.

        The answering endpoint's queue then counts the prompt no more."""
        spec = answering.endpoint.spec
        fresh = work.prefill_tokens - answering.predicted_tokens
        if spec.role == prefill_role or not (spec.is_half or 0 < spec.split_tokens < fresh):
            return None
        pool = self._endpoints.whole_pool(spec.pool)
        if pool is None:
            return None
        able = [
            endpoint
            for endpoint in usable_for_prompts(pool, now_s, excluded)
            if (endpoint.spec.deployment_id, endpoint.spec.generation)
            == (spec.deployment_id, spec.generation)
        ]
        if not able:
            return None
        matched = match(pool, work.prefix)
        costs = [split_s(endpoint, work, matched, fresh) for endpoint in able]
        at = costs.index(min(costs))
        whole = whole_s(answering, fresh)
        if costs[at] >= whole and not spec.is_half:
            return None
        endpoint = able[at]
        if self._log is not None and work.request_id:
            view = view_of(endpoint, costs[at], matched, whole)
            count = len(pool.prefillers)
            self._log.add(decision_of(view, work, now_s, endpoint, self._log, count=count))
        answering.prefilled(None)
        return self._begin(pool, endpoint, work, matched, now_s)

    @staticmethod
    def _begin(
        pool: Pool, endpoint: Endpoint, work: Work, matched: TokensBySlot, now_s: float
    ) -> Lease:
        predicted = min(int(matched[endpoint.slot]), work.prefill_tokens)
        pool.index.sent(endpoint.slot, work.prefix, now_s, endpoint.spec.kv_tokens)
        told = pool.blocks.held_tokens(endpoint.slot, work.prefix)
        pool.blocks.sent(endpoint.slot, work.prefix, now_s)
        half = Work(work.prefill_tokens, 1, work.prefix)
        return Lease(endpoint, half, now_s, predicted_tokens=predicted, told_tokens=told)


def view_of(endpoint: Endpoint, cost: float, matched: TokensBySlot, whole: float) -> CandidateView:
    """The endpoint as it was chosen, with what answering it whole would have cost."""
    return CandidateView(
        endpoint_id=endpoint.spec.id,
        cost=cost,
        terms={
            "queue_s": endpoint.queued_prefill_tokens * endpoint.rate.seconds_per_token,
            "whole_s": whole,
        },
        matched_tokens=int(matched[endpoint.slot]),
        in_flight_requests=endpoint.in_flight_requests,
        kv_share=endpoint.kv_share(),
        is_chosen=True,
    )


def decision_of(
    view: CandidateView,
    work: Work,
    now_s: float,
    endpoint: Endpoint,
    log: DecisionLog,
    *,
    count: int,
) -> Decision:
    """The first leg's choice among `count` endpoints, for `headrace explain route`."""
    return Decision(
        request_id=work.request_id,
        attempt=max(1, log.attempts(work.request_id)),
        monotonic_s=now_s,
        pool=endpoint.spec.pool,
        policy=policy_name,
        reason="least cost of those that compute prompts",
        endpoint_count=count,
        filtered={},
        tier="anywhere",
        prompt_tokens=work.prefill_tokens,
        candidates=(view,),
        chosen_id=endpoint.spec.id,
        leg=prefill_role,
    )


def whole_s(answering: Lease, fresh: int) -> float:
    """What computing the prompt where it is answered costs; its own tokens are queued there."""
    endpoint = answering.endpoint
    queued = max(0, endpoint.queued_prefill_tokens - fresh)
    return (queued + _whole.fresh_weight * fresh) * endpoint.rate.seconds_per_token


def split_s(endpoint: Endpoint, work: Work, matched: TokensBySlot, moved: int) -> float:
    """What computing it at `endpoint` costs, and moving so many tokens' KV from there."""
    fresh = work.prefill_tokens - min(int(matched[endpoint.slot]), work.prefill_tokens)
    tokens = endpoint.queued_prefill_tokens + fresh + moved_share * moved
    return tokens * endpoint.rate.seconds_per_token + endpoint.pressure_s
