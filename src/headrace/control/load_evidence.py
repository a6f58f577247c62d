"""What a deployment's replicas were seen to bear: first tokens and streams under a load, judged.

    late    more miss their time than chance explains, while requests were waiting for each other
    early   nearly all come in a part of their time, so the load may grow: by how much

`autoscale` learns from it what a replica can do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from headrace.control.rollout_health import share_within
from headrace.spec.autoscaling import Autoscaling
from headrace.spec.signals import inter_token_bounds_s

tolerance = 0.03  # of the replicas: the forecast is no better
proof_deviations = 2.0  # more are late than chance would have it
crowd_min = (
    2.0  # in flight a replica: fewer hardly wait for each other, and come late by themselves
)
early_growth = ((0.25, 1.3), (0.5, 1.15), (0.65, 1.05))  # if enough come in this share of the time
steady_growth = ((0.3, 1.3), (0.5, 1.15), (0.7, 1.05))  # the same of the time between tokens
idle_growth = 1.5  # while hardly anybody waits for another
busy_share = 0.85  # of the believed load: replicas that bear less prove no more


@dataclass(frozen=True, slots=True)
class Sample:
    """One deployment's traffic at one time."""

    time_s: float
    tokens_per_s: float  # of work that arrived since the sample before
    waiting_requests: int
    waiting_tokens: int  # at the gateways, and queued in engines
    in_flight_requests: int
    kv_share: float
    first_tokens: tuple[int, ...]  # since the sample before, by bounds
    active_replicas: int
    lead_s: float | None  # measured start of a replica; None: not measured yet
    inter_tokens: tuple[int, ...] = ()  # streams that ended, by their mean time between tokens
    guess_tokens_per_s: float | None = None  # that a replica may bear (`first_guess`), if known


@dataclass(slots=True)
class Evidence:
    """First tokens and streams since the last judgement, and the load under which they came."""

    begin_s: float
    replicas: int
    tokens: float = 0.0
    replica_s: float = 0.0
    request_s: float = 0.0  # in flight
    first_tokens: list[int] = field(default_factory=list)
    inter_tokens: list[int] = field(default_factory=list)

    def add(self, sample: Sample, elapsed_s: float) -> None:
        """What happened since the sample before."""
        self.tokens += sample.tokens_per_s * elapsed_s
        self.replica_s += sample.active_replicas * elapsed_s
        self.request_s += sample.in_flight_requests * elapsed_s
        self.first_tokens = summed(self.first_tokens, sample.first_tokens)
        self.inter_tokens = summed(self.inter_tokens, sample.inter_tokens)

    def share_in(self, limit_s: float) -> float:
        """The share of the first tokens that came in this time."""
        return share_within(self.first_tokens, limit_s)

    def share_steady(self, limit_s: float) -> float:
        """The share of the streams with this time between tokens, on average, or less."""
        return share_within(self.inter_tokens, limit_s, inter_token_bounds_s)

    def attained(self, policy: Autoscaling) -> float:
        """The lesser of the shares that are in their time."""
        in_time = self.share_in(policy.target_first_token_s)
        if policy.target_inter_token_s is None:
            return in_time
        return min(in_time, self.share_steady(policy.target_inter_token_s))

    def proves_lateness(self, policy: Autoscaling) -> bool:
        """Whether the load makes too many come late, and neither chance nor their own length."""
        if not self.is_crowded:
            return False
        target = policy.target_attainment

        def is_short(share: float, count: int) -> bool:
            chance = proof_deviations * math.sqrt(target * (1.0 - target) / max(1, count))
            return share < target - chance

        if is_short(self.share_in(policy.target_first_token_s), sum(self.first_tokens)):
            return True
        limit_s = policy.target_inter_token_s
        return limit_s is not None and is_short(self.share_steady(limit_s), sum(self.inter_tokens))

    @property
    def load_tokens_per_s(self) -> float:
        """Of a replica; 0 without any."""
        return self.tokens / self.replica_s if self.replica_s else 0.0

    @property
    def is_crowded(self) -> bool:
        """Whether requests may have waited for each other."""
        return self.request_s >= crowd_min * self.replica_s


def most_to_try(evidence: Evidence) -> float:
    """A replica's load that is no leap from the one that was borne: a sixth more, or what each
    would have with one replica fewer."""
    load = evidence.load_tokens_per_s
    fewer = max(1, evidence.replicas - 1)
    return load * max(1.0 / busy_share, (1.0 + tolerance) * evidence.replicas / fewer)


def earliness(policy: Autoscaling, evidence: Evidence) -> float:
    """By how much the load may grow; 1 if tokens come in time, and not early.

    First tokens of long prompts come late under any load; the time between tokens tells of the load
    alone. So either of them may be early."""
    if not evidence.is_crowded:
        return idle_growth
    target, found = policy.target_attainment, 1.0
    for part, growth in early_growth:
        if evidence.share_in(policy.target_first_token_s * part) >= target:
            found = max(found, growth)
    if policy.target_inter_token_s is not None and any(evidence.inter_tokens):
        for part, growth in steady_growth:
            if evidence.share_steady(policy.target_inter_token_s * part) >= target:
                found = max(found, growth)
    return found


def summed(counts: Sequence[int], more: Sequence[int]) -> list[int]:
    """Both, place by place; what one lacks is zero."""
    return [one + other for one, other in zip_longest(counts, more, fillvalue=0)]
