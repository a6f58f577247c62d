"""How many replicas a deployment should have: a pure function of what its traffic was and is.

    need   = max over targets of the replicas that each asks for
    tokens   forecast of work a second, at the time when a replica started now would serve,
             and what waits, over what a replica can do and its target use
    requests in flight, per replica        kv        share in use, per replica
    slo      some more while too few first tokens come in time

What a replica can do is declared, or the most that one was seen to do. Up at once, by at most twice
what there is; down only to the most that was needed during `down_after_s`, so that a short lull
costs nothing. To zero after `idle_s` without a request; from zero on the first request that waits.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.control.rollout_health import share_within
from headrace.spec.autoscaling import Autoscaling

memory_s = 3600.0  # of needs; no `down_after_s` above it is kept longer
samples_max = 720
level_weight, trend_weight = 0.4, 0.2  # of the newest sample (Holt 1957)
trend_damping = 0.5  # of the lead: trends rarely last
forecast_factor_max = 2.0  # of the level: no forecast is trusted beyond that
queue_drain_s = 10.0  # what waits should be gone by then
attainment_requests_min = 20  # fewer prove nothing
up_factor_max = 2.0
up_step_min = 4
capacity_decay = 0.999  # a look: a best that is never reached again is forgotten in an hour or so
lead_s_default = 60.0  # until a start was measured


@dataclass(frozen=True, slots=True)
class Sample:
    """One deployment's traffic at one time."""

    time_s: float
    tokens_per_s: float  # of work that arrived since the sample before
    waiting_requests: int
    waiting_tokens: int  # at the gateways, and queued in engines
    in_flight_requests: int
    kv_share: float
    worked_tokens_per_s: float  # that the replicas did since the sample before
    first_tokens: tuple[int, ...]  # since the sample before, by bounds
    active_replicas: int
    lead_s: float | None  # measured start of a replica; None: not measured yet


@dataclass(frozen=True, slots=True)
class Proposal:
    """How many replicas, and why."""

    replicas: int
    reason: str  # the target that decided, in words and numbers
    needs: tuple[tuple[str, float], ...]  # replicas by target
    forecast_tokens_per_s: float
    capacity_tokens_per_s: float | None  # of a replica
    lead_s: float
    min: int
    max: int


@dataclass(slots=True)
class Outlook:
    """What is remembered of one deployment between two looks."""

    level: float | None = None
    trend_per_s: float = 0.0
    best_tokens_per_s: float = 0.0  # that a replica was seen to do
    last_time_s: float | None = None
    last_request_s: float | None = None
    needs: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=samples_max))

    def learn(self, sample: Sample) -> None:
        """Follow level, trend and the best that a replica did."""
        elapsed_s = 0.0 if self.last_time_s is None else sample.time_s - self.last_time_s
        if self.level is None or elapsed_s <= 0:
            self.level = sample.tokens_per_s
        else:
            expected = self.level + self.trend_per_s * elapsed_s
            level = level_weight * sample.tokens_per_s + (1 - level_weight) * expected
            change_per_s = (level - self.level) / elapsed_s
            self.trend_per_s += trend_weight * (change_per_s - self.trend_per_s)
            self.level = max(0.0, level)
        self.last_time_s = sample.time_s
        if sample.active_replicas:
            done = sample.worked_tokens_per_s / sample.active_replicas
            self.best_tokens_per_s = max(done, self.best_tokens_per_s * capacity_decay)
        is_used = sample.tokens_per_s > 0 or sample.waiting_requests or sample.in_flight_requests
        if is_used or self.last_request_s is None:
            self.last_request_s = sample.time_s

    def forecast(self, lead_s: float) -> float:
        """Tokens a second by the time a replica started now would serve."""
        level = self.level or 0.0
        ahead = level + self.trend_per_s * lead_s * trend_damping
        return min(forecast_factor_max * level, max(0.0, ahead))


def propose(
    policy: Autoscaling, outlook: Outlook, sample: Sample, replicas: int, wall_s: float
) -> Proposal:
    """Learn from a sample and say how many replicas there should be."""
    outlook.learn(sample)
    lead_s = lead_s_default if sample.lead_s is None else sample.lead_s
    forecast = outlook.forecast(lead_s)
    capacity = policy.target_tokens_per_s or outlook.best_tokens_per_s or None
    needs = needs_of(policy, sample, forecast, capacity)
    lower, upper = bounds_at(policy, wall_s)
    name, need = max(needs, key=lambda entry: entry[1], default=("nothing", 0.0))
    wanted = math.ceil(need - 1e-9)
    reason = f"{name}: {need:.2f} replicas"
    is_idle = sample.waiting_requests == sample.in_flight_requests == 0 and (
        sample.time_s - (outlook.last_request_s or sample.time_s) >= policy.idle_s
    )
    if wanted == 0 and not is_idle:
        wanted, reason = 1, "requests came lately"
    if sample.waiting_requests and wanted == 0:
        wanted, reason = 1, "requests wait"
    outlook.needs.append((sample.time_s, wanted))
    steady, why = stabilised(policy, outlook, sample.time_s, wanted, replicas)
    reason = why or reason
    bounded = min(upper, max(lower, steady))
    if bounded != steady:
        reason = f"{reason}; bounds {lower} to {upper}"
    return Proposal(bounded, reason, tuple(needs), forecast, capacity, lead_s, lower, upper)


def needs_of(
    policy: Autoscaling, sample: Sample, forecast: float, capacity: float | None
) -> list[tuple[str, float]]:
    """The replicas that each target asks for."""
    needs: list[tuple[str, float]] = []
    if capacity:
        waiting = sample.waiting_tokens / queue_drain_s
        needs.append(("tokens", (forecast + waiting) / (capacity * policy.target_utilisation)))
    if policy.target_requests:
        requests = sample.in_flight_requests + sample.waiting_requests
        needs.append(("requests", requests / policy.target_requests))
    active = sample.active_replicas
    if active and sample.in_flight_requests:
        needs.append(("kv", active * sample.kv_share / policy.target_kv_share))
    if active and sum(sample.first_tokens) >= attainment_requests_min:
        attained = share_within(sample.first_tokens, policy.target_first_token_s)
        if attained < policy.target_attainment:
            missed = min(0.5, policy.target_attainment - attained)
            needs.append(("slo", active * (1.0 + max(0.1, missed))))
    if sample.waiting_requests and active:
        needs.append(("waiting", active + 0.5))
    return needs


def stabilised(
    policy: Autoscaling, outlook: Outlook, now_s: float, wanted: int, replicas: int
) -> tuple[int, str]:
    """The number to go to now, and why it is not the wanted one; empty if it is."""
    if wanted > replicas:
        limit = max(math.ceil(replicas * up_factor_max), replicas + up_step_min)
        return (limit, f"at most {limit} in one step") if wanted > limit else (wanted, "")
    window_s = min(memory_s, policy.down_after_s)
    recent = [need for time_s, need in outlook.needs if time_s > now_s - window_s]
    is_known = bool(outlook.needs) and outlook.needs[0][0] <= now_s - window_s
    most = max(recent, default=wanted)
    if not is_known:
        most = max(most, replicas)
    kept = min(replicas, max(wanted, most))
    if kept > wanted:
        return kept, f"{wanted} would do now; not down before {window_s:g} s of less need"
    return wanted, ""


def bounds_at(policy: Autoscaling, wall_s: float) -> tuple[int, int]:
    """The bounds at a time; of schedules that overlap the last one counts."""
    lower, upper = policy.min, policy.max
    minute = int(wall_s // 60) % (24 * 60)
    weekday = (int(wall_s // 86_400) + 3) % 7  # the epoch began on a Thursday
    for entry in policy.schedule:
        begins, ends = minutes_of(entry.begins), minutes_of(entry.ends)
        if begins <= ends:
            holds = begins <= minute < ends and weekday in entry.weekdays
        else:
            holds = (minute >= begins and weekday in entry.weekdays) or (
                minute < ends and (weekday - 1) % 7 in entry.weekdays
            )
        if holds:
            lower = lower if entry.min is None else entry.min
            upper = upper if entry.max is None else entry.max
    return min(lower, upper), upper


def minutes_of(clock_time: str) -> int:
    """Minutes since midnight."""
    hours, minutes = clock_time.split(":")
    return 60 * int(hours) + int(minutes)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one deployment asks of the devices."""

    name: str
    wanted: int
    min: int
    devices: int  # of a replica
    priority: int  # the highest gets first


def share_devices(claims: Iterable[Claim], devices: int | None) -> dict[str, int]:
    """Replicas for each deployment inside a budget of devices; None: there is none.

    First everybody's minimum, the highest priority first; then the rest one replica at a time to
    the highest priority that still wants one, and among equals to the one with the smallest share
    of its wish, so that nobody starves beside an equal."""
    ordered: Sequence[Claim] = sorted(claims, key=lambda claim: (-claim.priority, claim.name))
    if devices is None:
        return {claim.name: claim.wanted for claim in ordered}
    granted = dict.fromkeys((claim.name for claim in ordered), 0)
    left = devices
    for claim in ordered:
        affordable = left // claim.devices if claim.devices else claim.wanted
        granted[claim.name] = min(claim.min, claim.wanted, affordable)
        left -= granted[claim.name] * claim.devices
    while True:
        able = [
            claim
            for claim in ordered
            if granted[claim.name] < claim.wanted and claim.devices <= left
        ]
        if not able:
            return granted
        chosen = min(able, key=lambda c: (-c.priority, granted[c.name] / c.wanted, c.name))
        granted[chosen.name] += 1
        left -= chosen.devices
