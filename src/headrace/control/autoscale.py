"""How many replicas a deployment should have: a pure function of what its traffic was and is.

    need   = max over targets of the replicas that each asks for
    tokens   forecast of work a second, at the time when a replica started now would serve,
             and what waits, over what a replica can do and its target use
    requests in flight, per replica        kv        share in use, per replica
    slo      some more while too few first tokens come in time

What a replica can do is declared, or learnt from first tokens and, with a target for it, from the
time between tokens: the load that they bear is raised while they come early, and lowered when too
few come in time. Never from what replicas were seen to do: those that are half idle do little, and
would be believed to be able to do no more. The first evidence that is not late is worth at least
what devices and model let guess (`first_guess`).

First tokens may be late as long as enough were in time over all of the last `budget_s`: a burst
that is over when replicas come asks for none, and proves nothing of the load.

Up at once, by at most twice what there is; down only to the most that was needed during
`down_after_s`, by what a replica is believed to do now, so that a short lull costs nothing. To
zero after `idle_s` without a request; from zero on the first request that waits.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.control.load_evidence import (
    Evidence,
    Sample,
    busy_share,
    earliness,
    most_to_try,
    tolerance,
)
from headrace.spec.autoscaling import Autoscaling

memory_s = 3600.0  # of needs; no `down_after_s` above it is kept longer
samples_max = 720
level_s = 30.0  # of requests are averaged: fewer say what size each has, and no more
past_s = 180.0  # what it is compared with: a change over less counts as noise
slope_s_min = 15.0  # between the two, or there is no telling a slope
forecast_factor_max = 2.0  # of the level: no forecast is trusted beyond that
queue_drain_s = 10.0  # what waits should be gone by then
evidence_requests = 100  # whose first tokens are judged together; fewer prove no hundredth
evidence_s_max = 300.0  # then fewer must do, because older ones tell of another load
evidence_requests_min = 20
late_cut = 0.93  # of the load that was too much
blame_share = 0.95  # of the believed load is too much at least: what is late was asked before
blame_share_guess = 0.8  # of a guess that no replica has borne yet
retry_s = 1800.0  # until then no load near the one that was too much is tried again
retry_share = 0.95  # of it
retry_replicas_factor = 1.5  # so many more bear it together: bursts even out over them
budget_s = 600.0  # of requests, of which the share that may be late has to suffice
up_factor_max = 2.0
up_step_min = 4
lead_s_default = 60.0  # until a start was measured


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
class Average:
    """An exponentially weighted mean; the plain one of all until it has seen `memory_s`."""

    memory_s: float
    value: float = 0.0
    lag_s: float = 0.0  # the mean age of what it is a mean of: on a ramp it is so far behind
    seen_s: float = 0.0

    def add(self, value: float, elapsed_s: float) -> None:
        """A value that held for so long."""
        self.seen_s += elapsed_s
        weight = max(1.0 - math.exp(-elapsed_s / self.memory_s), elapsed_s / self.seen_s)
        self.value += weight * (value - self.value)
        self.lag_s = (1.0 - weight) * (self.lag_s + elapsed_s)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one look asked for: work by what a replica was believed to do, or replicas as such."""

    time_s: float
    work_tokens_per_s: float
    replicas: int  # of targets that no belief changes

    def wanted(self, bearable_tokens_per_s: float | None) -> int:
        """Replicas, by what one is believed to bear now; None: nothing is."""
        if not bearable_tokens_per_s:
            return self.replicas
        return max(self.replicas, math.ceil(self.work_tokens_per_s / bearable_tokens_per_s - 1e-9))


@dataclass(slots=True)
class Outlook:
    """What is remembered of one deployment between two looks."""

    level: Average = field(default_factory=lambda: Average(level_s))
    past: Average = field(default_factory=lambda: Average(past_s))
    bearable_tokens_per_s: float | None = None  # a replica's load while first tokens are in time
    missed: float = 0.0  # of the target share, by the last judgement, beyond what the budget bears
    is_guess: bool = False  # no replica has borne about the load that is believed
    asked: float = 0.0  # requests of the last `budget_s`, the older the less
    late: float = 0.0  # of them
    judge_s: float = 0.0  # when they were counted last
    evidence: Evidence | None = None
    cut_s: float = 0.0  # when a load was last found too much
    too_much_tokens_per_s: float | None = None  # that load
    too_much_replicas: int = 0  # that it was too much for
    last_time_s: float | None = None
    last_request_s: float | None = None
    waiting_since_s: float | None = None  # somebody waits at the gateways; None: nobody does
    demands: deque[Demand] = field(default_factory=lambda: deque(maxlen=samples_max))

    def learn(self, policy: Autoscaling, sample: Sample, lead_s: float) -> None:
        """Follow the level, its trend, and what a replica bears."""
        if self.last_time_s is not None and sample.time_s > self.last_time_s:
            elapsed_s = sample.time_s - self.last_time_s
            self.level.add(sample.tokens_per_s, elapsed_s)
            self.past.add(sample.tokens_per_s, elapsed_s)
            self._judge(policy, sample, elapsed_s, lead_s)
        elif self.last_time_s is None:
            self.level.value = self.past.value = sample.tokens_per_s
        self.last_time_s = sample.time_s
        if not sample.waiting_requests:
            self.waiting_since_s = None
        elif self.waiting_since_s is None:
            self.waiting_since_s = sample.time_s
        is_used = sample.tokens_per_s > 0 or sample.waiting_requests or sample.in_flight_requests
        if is_used or self.last_request_s is None:
            self.last_request_s = sample.time_s

    def forecast(self, lead_s: float) -> float:
        """Tokens a second by the time a replica started now would serve.

        Each mean lags behind a ramp by its age, so their difference is its slope."""
        apart_s = self.past.lag_s - self.level.lag_s
        slope = (self.level.value - self.past.value) / apart_s if apart_s >= slope_s_min else 0.0
        ahead = self.level.value + slope * (self.level.lag_s + lead_s)
        return min(forecast_factor_max * self.level.value, max(0.0, ahead))

    def _judge(self, policy: Autoscaling, sample: Sample, elapsed_s: float, lead_s: float) -> None:
        evidence, now_s = self.evidence, sample.time_s
        if evidence is None or evidence.replicas != sample.active_replicas:
            evidence = self.evidence = Evidence(now_s - elapsed_s, sample.active_replicas)
            self.missed = 0.0
        evidence.add(sample, elapsed_s)
        is_old = now_s - evidence.begin_s >= evidence_s_max
        if sum(evidence.first_tokens) < (evidence_requests_min if is_old else evidence_requests):
            if is_old:
                self.evidence, self.missed = None, 0.0
            return
        self.evidence = None
        load = evidence.load_tokens_per_s
        borne = self.bearable_tokens_per_s
        self.missed = 0.0
        has_budget = self._count(policy, evidence, now_s)
        if evidence.proves_lateness(policy):
            if has_budget:
                return
            self.missed = policy.target_attainment - evidence.attained(policy)
            if now_s - self.cut_s >= lead_s:  # until then what was started for it is not there
                share = blame_share_guess if self.is_guess else blame_share
                blamed = max(load, share * (borne or load))
                self.cut_s, self.too_much_tokens_per_s = now_s, blamed
                self.too_much_replicas = evidence.replicas
                self.bearable_tokens_per_s = late_cut * min(borne or blamed, blamed)
        else:
            raised = max(borne or load, load) * earliness(policy, evidence)
            most = math.inf
            if not (has_budget and evidence.replicas >= self._replicas_to_retry):
                most = self._most_to_retry(policy, now_s)
            raised = min(raised, most_to_try(evidence), most)
            known = (sample.guess_tokens_per_s or 0.0) if borne is None else borne
            self.bearable_tokens_per_s = max(known, raised)
            if borne is None:
                self.is_guess = known > raised
            elif load >= busy_share * borne:
                self.is_guess = False

    def _count(self, policy: Autoscaling, evidence: Evidence, now_s: float) -> bool:
        """Add to the requests of the last minutes; whether no more of them are late than may be.

        A burst that is over when replicas come is paid from what quiet minutes left."""
        fade = math.exp((self.judge_s - now_s) / budget_s)
        self.judge_s = now_s
        count = sum(evidence.first_tokens)
        self.asked = self.asked * fade + count
        self.late = self.late * fade + count * (1.0 - evidence.attained(policy))
        return self.late <= (1.0 - policy.target_attainment) * self.asked

    @property
    def _replicas_to_retry(self) -> float:
        """From so many on what was too much is tried again at once."""
        return retry_replicas_factor * self.too_much_replicas

    def _most_to_retry(self, policy: Autoscaling, now_s: float) -> float:
        """Not the load again that was too much lately, as far as it is known well.

        First tokens alone are late of one long prompt, and would hold a load down that is borne."""
        too_much = self.too_much_tokens_per_s
        if policy.target_inter_token_s is None or too_much is None:
            return math.inf
        return retry_share * too_much if now_s - self.cut_s < retry_s else math.inf


def propose(
    policy: Autoscaling, outlook: Outlook, sample: Sample, replicas: int, wall_s: float
) -> Proposal:
    """Learn from a sample and say how many replicas there should be."""
    lead_s = lead_s_default if sample.lead_s is None else sample.lead_s
    outlook.learn(policy, sample, lead_s)
    forecast = outlook.forecast(lead_s)
    capacity = capacity_of(policy, outlook)
    needs = needs_of(policy, outlook, sample, forecast)
    lower, upper = bounds_at(policy, wall_s)
    name, need = max(needs, key=lambda entry: entry[1], default=("nothing", 0.0))
    if name == "tokens" and replicas < need <= (1.0 + tolerance) * replicas:
        need = replicas
    wanted = math.ceil(need - 1e-9)
    reason = f"{name}: {need:.2f} replicas"
    is_idle = sample.waiting_requests == sample.in_flight_requests == 0 and (
        sample.time_s - (outlook.last_request_s or sample.time_s) >= policy.idle_s
    )
    if wanted == 0 and not is_idle:
        wanted, reason = 1, "requests came lately"
    if sample.waiting_requests and wanted == 0:
        wanted, reason = 1, "requests wait"
    is_by_work = name == "tokens" and wanted == math.ceil(need - 1e-9)
    work = need * (borne_by(policy, outlook) or 0.0) if is_by_work else 0.0
    outlook.demands.append(Demand(sample.time_s, work, 0 if work else wanted))
    steady, why = stabilised(policy, outlook, sample.time_s, wanted, replicas)
    reason = why or reason
    bounded = min(upper, max(lower, steady))
    if bounded != steady:
        reason = f"{reason}; bounds {lower} to {upper}"
    return Proposal(bounded, reason, tuple(needs), forecast, capacity, lead_s, lower, upper)


def capacity_of(policy: Autoscaling, outlook: Outlook) -> float | None:
    """What a replica can do, of which the target use is asked; None until something is known."""
    if policy.target_tokens_per_s is not None or outlook.bearable_tokens_per_s is None:
        return policy.target_tokens_per_s
    return outlook.bearable_tokens_per_s / policy.target_utilisation


def borne_by(policy: Autoscaling, outlook: Outlook) -> float | None:
    """Tokens a second that are asked of a replica; None until something is known."""
    capacity = capacity_of(policy, outlook)
    return None if capacity is None else capacity * policy.target_utilisation


def needs_of(
    policy: Autoscaling, outlook: Outlook, sample: Sample, forecast: float
) -> list[tuple[str, float]]:
    """The replicas that each target asks for."""
    needs: list[tuple[str, float]] = []
    capacity = capacity_of(policy, outlook)
    patience_s = policy.target_first_token_s / 2
    if capacity:
        usual = sample.active_replicas * capacity * patience_s  # that is done in time
        waiting = max(0.0, sample.waiting_tokens - usual) / queue_drain_s
        needs.append(("tokens", (forecast + waiting) / (capacity * policy.target_utilisation)))
    if policy.target_requests:
        requests = sample.in_flight_requests + sample.waiting_requests
        needs.append(("requests", requests / policy.target_requests))
    active = sample.active_replicas
    if active and sample.in_flight_requests:
        needs.append(("kv", active * sample.kv_share / policy.target_kv_share))
    if active and outlook.missed:
        needs.append(("slo", active * (1.0 + min(0.5, max(0.1, outlook.missed)))))
    waits_since_s = outlook.waiting_since_s
    if active and waits_since_s is not None and sample.time_s - waits_since_s >= patience_s:
        needs.append(("waiting", active + 0.5))
    return needs


def stabilised(
    policy: Autoscaling, outlook: Outlook, now_s: float, wanted: int, replicas: int
) -> tuple[int, str]:
    """The number to go to now, and why it is not the wanted one; empty if it is.

    What was asked before counts by what replicas are believed to bear now."""
    if wanted > replicas:
        limit = max(math.ceil(replicas * up_factor_max), replicas + up_step_min)
        return (limit, f"at most {limit} in one step") if wanted > limit else (wanted, "")
    window_s = min(memory_s, policy.down_after_s)
    borne = borne_by(policy, outlook)
    demands = outlook.demands
    recent = [demand.wanted(borne) for demand in demands if demand.time_s > now_s - window_s]
    is_known = bool(demands) and demands[0].time_s <= now_s - window_s
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
