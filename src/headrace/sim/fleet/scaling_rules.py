"""How many replicas a deployment should have: our rule, and models of others'.

    rule         its knob              what it is
    headrace     target utilisation    the control plane's own `autoscale.propose`
    hpa          requests a replica    Kubernetes: ceil(ongoing / target), 10% tolerance, each 15 s,
                                       down to the most of five minutes
    kpa          requests a replica    AIBrix after Knative: a minute's mean, six seconds' in a
                                       panic, which goes up only; at most twice or half at once
    apa          requests a replica    AIBrix: the moment's ratio, 10% tolerance, down after 300 s
    planner      sensitivity           Dynamo's load mode: one more while every engine is late, one
                                       less while every engine is early
    clairvoyant  tokens/s a replica    knows all arrivals: what the next start time will need

The planner is given the device's true time model in the place of its regressions. The clairvoyant's
knob is found by search, so that it just meets its objective: the best of this family of schedules,
which the true optimum may still beat by a little.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

from headrace.control.autoscale import Outlook, propose
from headrace.control.first_guess import guessed_tokens_per_s
from headrace.control.load_evidence import Sample
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.scenario import Objective, Scaling
from headrace.spec.autoscaling import Autoscaling

hpa_period_s, hpa_stabilisation_s = 15.0, 300.0
tolerance = 0.1  # of HPA and APA
kpa_stable_s, kpa_panic_s, kpa_panic_ratio = 60.0, 6.0, 2.0
apa_cooldown_s = 300.0
planner_period_s = 5.0
clairvoyant_bin_s = 5.0
clairvoyant_window_bins = 6  # that arrivals are averaged over: about a request's stay
knobs_default = {
    "headrace": 0.7,
    "hpa": 8.0,
    "kpa": 8.0,
    "apa": 8.0,
    "planner": 0.7,
    "clairvoyant": 5000.0,
}


@dataclass(frozen=True, slots=True)
class EngineLook:
    """One replica that serves, as a planner sees it."""

    queued_tokens: int  # of prompts
    requests: int
    held_tokens: int


@dataclass(frozen=True, slots=True)
class Look:
    """What a rule decides on."""

    sample: Sample
    replicas: int  # wanted so far
    starting: int  # of them, launched and not up
    engines: Sequence[EngineLook]

    @property
    def ongoing(self) -> int:
        """Requests that run or wait."""
        return self.sample.in_flight_requests + self.sample.waiting_requests


@dataclass(frozen=True, slots=True)
class RuleContext:
    """What a rule may be made of."""

    scaling: Scaling
    objective: Objective
    device: DeviceModel
    start_s: float
    arrivals: Sequence[tuple[float, int]]  # time and tokens of all requests; the clairvoyant's

    @property
    def knob(self) -> float:
        """The rule's number."""
        knob = self.scaling.knob
        return knobs_default[self.scaling.rule] if knob is None else knob


class ScalingRule(Protocol):
    """Says how many replicas there should be; the bounds are applied to what it says."""

    def wanted(self, look: Look) -> int:
        """From one look; asked every two seconds."""
        ...


class Headrace:
    """The real rule."""

    def __init__(self, context: RuleContext) -> None:
        scaling = context.scaling
        self._outlook = Outlook()
        guess = guessed_tokens_per_s(context.device.row_s) if context.device.row_s else 0.0
        self._guess_tokens_per_s = scaling.guess_factor * guess or None
        self._policy = Autoscaling(
            min=scaling.min,
            max=scaling.max,
            target_tokens_per_s=scaling.tokens_per_s,
            target_utilisation=context.knob,
            target_first_token_s=context.objective.ttft_s,
            # Who declares what a replica bears has nothing to learn from the time between tokens.
            target_inter_token_s=None if scaling.tokens_per_s else context.objective.tpot_s,
        )

    def wanted(self, look: Look) -> int:
        """What the control plane would write."""
        sample = replace(look.sample, guess_tokens_per_s=self._guess_tokens_per_s)
        return propose(self._policy, self._outlook, sample, look.replicas, 0.0).replicas


class Recent:
    """Values of the last seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, value: float) -> None:
        """Take one, and forget the old ones."""
        self._values.append((now_s, value))
        while self._values[0][0] <= now_s - self._window_s:
            self._values.popleft()

    @property
    def mean(self) -> float:
        """Of those that are left."""
        return sum(value for _, value in self._values) / len(self._values)

    @property
    def most(self) -> float:
        """Of those that are left."""
        return max(value for _, value in self._values)


class Hpa:
    """Kubernetes' horizontal pod autoscaler on ongoing requests."""

    def __init__(self, context: RuleContext) -> None:
        self._target = context.knob
        self._next_s = 0.0
        self._recent = Recent(hpa_stabilisation_s)

    def wanted(self, look: Look) -> int:
        """At its period; between, what there is."""
        now_s = look.sample.time_s
        if now_s < self._next_s:
            return look.replicas
        self._next_s = now_s + hpa_period_s
        ready = max(1, look.sample.active_replicas)
        ratio = look.ongoing / (ready * self._target)
        desired = math.ceil(look.ongoing / self._target)
        if abs(ratio - 1.0) <= tolerance:
            desired = look.replicas
        self._recent.add(now_s, desired)
        if desired >= look.replicas:
            return min(desired, max(2 * look.replicas, look.replicas + 4))
        return min(look.replicas, int(self._recent.most))


class Kpa:
    """Knative's, as AIBrix has it."""

    def __init__(self, context: RuleContext) -> None:
        self._target = context.knob
        self._stable = Recent(kpa_stable_s)
        self._panic = Recent(kpa_panic_s)
        self._panic_until_s = -1.0
        self._panic_most = 0

    def wanted(self, look: Look) -> int:
        """The stable mean's need, or the panic's, which does not fall."""
        now_s, replicas = look.sample.time_s, max(1, look.replicas)
        self._stable.add(now_s, look.ongoing)
        self._panic.add(now_s, look.ongoing)
        stable = self._clamped(self._stable.mean, replicas)
        panic = self._clamped(self._panic.mean, replicas)
        if self._panic.mean / self._target >= kpa_panic_ratio * replicas:
            self._panic_until_s = now_s + kpa_stable_s
        if now_s >= self._panic_until_s:
            self._panic_most = 0
            return stable
        self._panic_most = max(self._panic_most, panic, replicas)
        return self._panic_most

    def _clamped(self, ongoing: float, replicas: int) -> int:
        desired = math.ceil(ongoing / self._target)
        return max(replicas // 2, min(desired, max(1, 2 * replicas)))


class Apa:
    """AIBrix' own."""

    def __init__(self, context: RuleContext) -> None:
        self._target = context.knob
        self._low_since_s: float | None = None

    def wanted(self, look: Look) -> int:
        """The ratio's need at once upwards, and downwards once it lasted."""
        now_s, replicas = look.sample.time_s, max(1, look.replicas)
        ratio = look.ongoing / (replicas * self._target)
        if ratio >= 1.0 - tolerance:
            self._low_since_s = None
            if ratio <= 1.0 + tolerance:
                return replicas
            return min(math.ceil(replicas * ratio), 2 * replicas)
        if self._low_since_s is None:
            self._low_since_s = now_s
        if now_s - self._low_since_s < apa_cooldown_s:
            return replicas
        self._low_since_s = now_s
        return max(math.ceil(replicas * ratio), replicas // 2)


class Planner:
    """Dynamo's load mode: plus or minus one, when nothing is starting."""

    def __init__(self, context: RuleContext) -> None:
        self._sensitivity = context.knob
        self._objective = context.objective
        self._device = context.device
        self._next_s = 0.0

    def wanted(self, look: Look) -> int:
        """At its period."""
        if look.sample.time_s < self._next_s or look.starting or not look.engines:
            return look.replicas
        self._next_s = look.sample.time_s + planner_period_s
        use = [self._use(engine) for engine in look.engines]
        if min(use) > 1.0:
            return look.replicas + 1
        if max(use) < self._sensitivity:
            return look.replicas - 1
        return look.replicas

    def _use(self, engine: EngineLook) -> float:
        """The larger of a new request's times over their limits."""
        first_s = engine.queued_tokens / self._device.prefill_tokens_per_s
        count = engine.requests
        token_s = self._device.step_s(count, count, engine.held_tokens, 0.0)
        return max(first_s / self._objective.ttft_s, token_s / self._objective.tpot_s)


class Clairvoyant:
    """Knows what comes."""

    def __init__(self, context: RuleContext) -> None:
        bins = 1 + math.ceil(max((at for at, _ in context.arrivals), default=0) / clairvoyant_bin_s)
        tokens = [0.0] * bins
        for at, count in context.arrivals:
            tokens[int(at / clairvoyant_bin_s)] += count
        sums = [0.0, *accumulate(tokens)]
        half = clairvoyant_window_bins // 2
        self._need = []
        for position in range(bins):
            first, last = max(0, position - half), min(bins, position + half)
            rate = (sums[last] - sums[first]) / ((last - first) * clairvoyant_bin_s)
            self._need.append(math.ceil(rate / context.knob))
        self._ahead = 1 + math.ceil(context.start_s / clairvoyant_bin_s)

    def wanted(self, look: Look) -> int:
        """The most of the time that a start takes: earlier would be idle, later too late."""
        now = int(look.sample.time_s / clairvoyant_bin_s)
        return max(self._need[now : now + self._ahead + 1], default=1)


rules: dict[str, Callable[[RuleContext], ScalingRule]] = {
    "headrace": Headrace,
    "hpa": Hpa,
    "kpa": Kpa,
    "apa": Apa,
    "planner": Planner,
    "clairvoyant": Clairvoyant,
}


def make_rule(context: RuleContext) -> ScalingRule:
    """The rule that a scenario names."""
    return rules[context.scaling.rule](context)
