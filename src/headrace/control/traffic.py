"""What all gateways said of their traffic, added up: totals that survive a gateway's restart.

    gateway A: 120, 130, (restarts) 4, 9        book: 120 + 10 + 4 + 5

Each answer is compared with the one before of the same gateway life; the differences are added. So
a lost answer costs nothing, a repeated one adds nothing, and a new life starts from zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.control.rollout_health import GenerationHealth
from headrace.spec.signals import GatewaySignals, GenerationSignals, ModelSignals

gateways_max = 256  # lives remembered; those that were not heard of for longest are forgotten
silent_s_max = 10.0  # a gateway that was not heard of for longer has no present load


@dataclass(slots=True)
class GenerationTotals:
    """What one generation did, over all gateways."""

    attempts: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    first_tokens: list[int] = field(default_factory=list)
    inter_tokens: list[int] = field(default_factory=list)

    def add(self, now: GenerationSignals, before: GenerationSignals | None) -> None:
        """Add what came since the answer before."""
        zero = GenerationSignals(deployment_id="", generation=0)
        before = before or zero
        self.attempts += max(0, now.attempts_total - before.attempts_total)
        self.failures += max(0, now.failures_total - before.failures_total)
        self.prompt_tokens += max(0, now.prompt_tokens_total - before.prompt_tokens_total)
        self.cached_tokens += max(0, now.cached_tokens_total - before.cached_tokens_total)
        self.completion_tokens += max(
            0, now.completion_tokens_total - before.completion_tokens_total
        )
        add_counts(self.first_tokens, now.first_tokens, before.first_tokens)
        add_counts(self.inter_tokens, now.inter_tokens, before.inter_tokens)

    def health(self) -> GenerationHealth:
        """The part that a rollout is judged by."""
        return GenerationHealth(self.attempts, self.failures, tuple(self.first_tokens))


@dataclass(slots=True)
class ModelTotals:
    """What arrived for one model, over all gateways."""

    requests: int = 0
    tokens: int = 0
    judged: int = 0  # that ended other than by their caller's doing
    good: int = 0  # of them, those within the model's objectives


@dataclass(frozen=True, slots=True)
class PresentLoad:
    """What is under way for one deployment now, over all gateways."""

    in_flight_requests: int = 0
    queued_tokens: int = 0
    kv_share: float = 0.0  # the highest that a gateway estimates


@dataclass(frozen=True, slots=True)
class PresentWait:
    """What waits for one model now, over all gateways."""

    requests: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Life:
    """One gateway from its start on."""

    signals: GatewaySignals
    heard_s: float


class TrafficBook:
    """Totals and present load, by generation and model."""

    def __init__(self) -> None:
        self._lives: dict[str, Life] = {}  # the least recently heard first
        self._generations: dict[tuple[str, int], GenerationTotals] = {}
        self._models: dict[str, ModelTotals] = {}
        self._baselines: dict[str, tuple[int, dict[int, GenerationHealth]]] = {}
        self._success_s: float | None = None

    @property
    def gateways_heard(self) -> int:
        """How many gateways said something since this start."""
        return len(self._lives)

    def hear(self, signals: GatewaySignals, now_s: float) -> None:
        """Take one answer of one gateway."""
        if signals.success_age_s is not None:
            success_s = now_s - signals.success_age_s
            self._success_s = max(success_s, self._success_s or success_s)
        life = self._lives.pop(signals.gateway_id, None)
        before = life.signals if life else GatewaySignals(gateway_id=signals.gateway_id)
        self._lives[signals.gateway_id] = Life(signals, now_s)
        if len(self._lives) > gateways_max:
            del self._lives[next(iter(self._lives))]
        known = {(g.deployment_id, g.generation): g for g in before.generations}
        for generation in signals.generations:
            name = (generation.deployment_id, generation.generation)
            totals = self._generations.setdefault(name, GenerationTotals())
            totals.add(generation, known.get(name))
        models = {model.model: model for model in before.models}
        for model in signals.models:
            self._add_model(model, models.get(model.model))

    def success_age_s(self, now_s: float) -> float | None:
        """Since something last came back to somebody, as any gateway said; None: nothing yet.

        A gateway that is gone keeps what it said."""
        return None if self._success_s is None else max(0.0, now_s - self._success_s)

    def keep_only(self, deployment_ids: set[str]) -> None:
        """Forget what belongs to deployments that are gone."""
        self._generations = {
            name: totals for name, totals in self._generations.items() if name[0] in deployment_ids
        }
        self._baselines = {
            name: kept for name, kept in self._baselines.items() if name in deployment_ids
        }

    def since_change(self, deployment_id: str, generation: int) -> Mapping[int, GenerationHealth]:
        """What each generation did since this one became the present one.

        That is when it was first asked about; a control plane that restarts begins anew."""
        totals = {
            number: kept.health()
            for (owner, number), kept in self._generations.items()
            if owner == deployment_id
        }
        known = self._baselines.get(deployment_id)
        if known is None or known[0] != generation:
            known = self._baselines[deployment_id] = (generation, totals)
        return {
            number: difference(health, known[1].get(number)) for number, health in totals.items()
        }

    def totals_of(self, deployment_id: str) -> GenerationTotals:
        """All generations of a deployment together."""
        both = GenerationTotals()
        for (owner, _), kept in self._generations.items():
            if owner == deployment_id:
                both.attempts += kept.attempts
                both.failures += kept.failures
                both.prompt_tokens += kept.prompt_tokens
                both.cached_tokens += kept.cached_tokens
                both.completion_tokens += kept.completion_tokens
                add_counts(both.first_tokens, kept.first_tokens)
                add_counts(both.inter_tokens, kept.inter_tokens)
        return both

    def arrived(self, model: str) -> ModelTotals:
        """What arrived for a model so far."""
        return self._models.get(model, ModelTotals())

    def load(self, deployment_id: str, now_s: float) -> PresentLoad:
        """What is under way for a deployment."""
        heard = [
            generation
            for signals in self._present(now_s)
            for generation in signals.generations
            if generation.deployment_id == deployment_id
        ]
        return PresentLoad(
            in_flight_requests=sum(generation.in_flight_requests for generation in heard),
            queued_tokens=sum(generation.queued_tokens for generation in heard),
            kv_share=max((generation.kv_share for generation in heard), default=0.0),
        )

    def waiting(self, model: str, now_s: float) -> PresentWait:
        """What waits for a model."""
        heard = [
            entry
            for signals in self._present(now_s)
            for entry in signals.models
            if entry.model == model
        ]
        return PresentWait(
            sum(entry.waiting_requests for entry in heard),
            sum(entry.waiting_tokens for entry in heard),
        )

    def _present(self, now_s: float) -> Iterator[GatewaySignals]:
        for life in self._lives.values():
            if now_s - life.heard_s <= silent_s_max:
                yield life.signals

    def _add_model(self, now: ModelSignals, before: ModelSignals | None) -> None:
        totals = self._models.setdefault(now.model, ModelTotals())
        before = before or ModelSignals(model=now.model)
        totals.requests += max(0, now.arrived_requests_total - before.arrived_requests_total)
        totals.tokens += max(0, now.arrived_tokens_total - before.arrived_tokens_total)
        totals.judged += max(0, now.judged_requests_total - before.judged_requests_total)
        totals.good += max(0, now.good_requests_total - before.good_requests_total)


def add_counts(totals: list[int], now: Sequence[int], before: Sequence[int] = ()) -> None:
    """Add to each of the totals what came since the counts before; none there: since the start."""
    totals += [0] * (len(now) - len(totals))
    known = (*before, *[0] * (len(now) - len(before)))
    for position, (count, earlier) in enumerate(zip(now, known, strict=False)):
        totals[position] += max(0, count - earlier)


def difference(now: GenerationHealth, before: GenerationHealth | None) -> GenerationHealth:
    """What was added between two looks."""
    if before is None:
        return now
    earlier = before.first_tokens or (0,) * len(now.first_tokens)
    return GenerationHealth(
        now.attempts - before.attempts,
        now.failures - before.failures,
        tuple(a - b for a, b in zip(now.first_tokens, earlier, strict=False)),
    )
