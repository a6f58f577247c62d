"""The last routing decisions, so that `headrace explain route` can say why.

Each is kept as it was at the moment of the choice: how many endpoints there were, why some were
left out, what the best ones cost and what that was made of. Bounded; the oldest is forgotten.
"""

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

decisions_max = 4096
candidates_max = 8  # kept of one decision: the cheapest


class CandidateView(msgspec.Struct, frozen=True):
    """One endpoint as it was considered."""

    endpoint_id: str
    cost: float
    terms: Mapping[str, float]
    matched_tokens: int  # of the prompt, believed to be in its cache
    in_flight_requests: int
    kv_share: float
    is_chosen: bool = False


class Decision(msgspec.Struct, frozen=True):
    """One choice."""

    request_id: str
    attempt: int
    monotonic_s: float  # when, on the clock of its gateway
    pool: str
    policy: str
    reason: str  # why this one: cost, session, the only one left
    endpoint_count: int
    filtered: Mapping[str, int]  # endpoints left out, by why
    tier: str  # how near: zone, region, anywhere
    prompt_tokens: int
    candidates: tuple[CandidateView, ...]
    chosen_id: str
    leg: str = ""  # prefill: where the prompt of a split request is computed first


class DecisionLog:
    """Decisions by request id, in the order in which they were made."""

    def __init__(self, requests_max: int = decisions_max) -> None:
        assert requests_max > 0
        self._requests_max = requests_max
        self._decisions: OrderedDict[str, list[Decision]] = OrderedDict()

    def add(self, decision: Decision) -> None:
        """Keep a decision; a request has one an attempt."""
        known = self._decisions.setdefault(decision.request_id, [])
        known.append(decision)
        if len(self._decisions) > self._requests_max:
            self._decisions.popitem(last=False)

    def attempts(self, request_id: str) -> int:
        """How many decisions are kept of a request."""
        return sum(not decision.leg for decision in self._decisions.get(request_id, ()))

    def of(self, request_id: str) -> tuple[Decision, ...]:
        """Every decision on a request, the first first; empty if it is not known."""
        return tuple(self._decisions.get(request_id, ()))
