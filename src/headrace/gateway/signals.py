"""Counts of this gateway's traffic by model and by generation, for autoscaling and rollouts.

Every attempt counts where it went, also one that was retried elsewhere: a rollout is judged by what
its replicas do, and not by what retries hid. Models and generations that are gone are forgotten.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.base.clock import Clock
from headrace.gateway.waiting_room import WaitingRoom
from headrace.router.endpoint import Endpoint, EndpointSpec
from headrace.spec.settlements import TokenUsage
from headrace.spec.signals import (
    GatewaySignals,
    GenerationSignals,
    ModelSignals,
    first_token_bounds_s,
    inter_token_bounds_s,
)

Generation = tuple[str, int]  # a deployment's id and a number


@dataclass(slots=True)
class GenerationCounts:
    """What one generation's replicas did."""

    attempts: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_tokens: list[int] = field(default_factory=lambda: [0] * (len(first_token_bounds_s) + 1))
    inter_tokens: list[int] = field(default_factory=lambda: [0] * (len(inter_token_bounds_s) + 1))


@dataclass(slots=True)
class ModelCounts:
    """What arrived for one model."""

    requests: int = 0
    tokens: int = 0


class TrafficCounts:
    """The counts of one gateway; only its event loop changes them."""

    def __init__(self, gateway_id: str, clock: Clock) -> None:
        self._gateway_id = gateway_id
        self._clock = clock
        self._success_s: float | None = None
        self._generations: dict[Generation, GenerationCounts] = {}
        self._models: dict[str, ModelCounts] = {}

    def arrived(self, model: str, tokens: int) -> None:
        """A request was admitted."""
        counts = self._models.setdefault(model, ModelCounts())
        counts.requests += 1
        counts.tokens += tokens

    def attempted(self, spec: EndpointSpec) -> None:
        """A request goes to a replica."""
        self._of(spec).attempts += 1

    def failed(self, spec: EndpointSpec) -> None:
        """A replica refused, broke or did not answer, which is its own fault."""
        self._of(spec).failures += 1

    def first_output(self, spec: EndpointSpec, seconds: float) -> None:
        """A replica's first output came so long after it was asked."""
        self._of(spec).first_tokens[bisect_left(first_token_bounds_s, seconds)] += 1
        self.succeeded()

    def streamed(self, spec: EndpointSpec, least_s: float, most_s: float, tokens: int) -> None:
        """A replica's stream of so many tokens ended well, so long after its first one.

        Where its reader held it up, nobody knows how long the replica took: one whose bounds are
        apart by more than the counts tell apart is left out."""
        if tokens >= 2:
            first, last = (
                bisect_left(inter_token_bounds_s, seconds / (tokens - 1))
                for seconds in (least_s, most_s)
            )
            if first == last:
                self._of(spec).inter_tokens[first] += 1

    def succeeded(self) -> None:
        """Something came back to somebody: a first output, or a whole answer."""
        self._success_s = self._clock.monotonic_s()

    def used(self, spec: EndpointSpec, usage: TokenUsage) -> None:
        """A replica worked so much for a request that ended."""
        counts = self._of(spec)
        counts.prompt_tokens += usage.prompt_tokens
        counts.cached_tokens += usage.cached_tokens
        counts.completion_tokens += usage.completion_tokens

    def view(
        self,
        endpoints: Iterable[Endpoint],
        room: WaitingRoom,
        goodput: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {}),
    ) -> GatewaySignals:
        """All counts, with the present load; forgets what nothing belongs to any more.

        `goodput` is how many requests were judged and how many were good, by model."""
        members: dict[Generation, list[Endpoint]] = {}
        for endpoint in endpoints:
            members.setdefault(generation_of(endpoint.spec), []).append(endpoint)
        self._generations = {
            name: counts for name, counts in self._generations.items() if name in members
        }
        waiting = room.waiting_by_model()
        judged, good = goodput
        names = {*self._models, *waiting, *judged}
        return GatewaySignals(
            gateway_id=self._gateway_id,
            success_age_s=(
                None
                if self._success_s is None
                else max(0.0, self._clock.monotonic_s() - self._success_s)
            ),
            generations=tuple(
                self._generation_view(name, present) for name, present in sorted(members.items())
            ),
            models=tuple(
                msgspec.structs.replace(
                    self._model_view(name, *waiting.get(name, (0, 0))),
                    judged_requests_total=judged.get(name, 0),
                    good_requests_total=good.get(name, 0),
                )
                for name in names
            ),
        )

    def _of(self, spec: EndpointSpec) -> GenerationCounts:
        return self._generations.setdefault(generation_of(spec), GenerationCounts())

    def _generation_view(self, name: Generation, present: list[Endpoint]) -> GenerationSignals:
        counts = self._generations.get(name, GenerationCounts())
        usable = [endpoint for endpoint in present if endpoint.spec.accepts_requests]
        return GenerationSignals(
            deployment_id=name[0],
            generation=name[1],
            attempts_total=counts.attempts,
            failures_total=counts.failures,
            prompt_tokens_total=counts.prompt_tokens,
            cached_tokens_total=counts.cached_tokens,
            completion_tokens_total=counts.completion_tokens,
            first_tokens=tuple(counts.first_tokens),
            inter_tokens=tuple(counts.inter_tokens),
            in_flight_requests=sum(endpoint.in_flight_requests for endpoint in present),
            queued_tokens=sum(endpoint.queued_prefill_tokens for endpoint in present),
            kv_share=sum(e.kv_share() for e in usable) / len(usable) if usable else 0.0,
            replicas=len(usable),
        )

    def _model_view(self, name: str, requests: int, tokens: int) -> ModelSignals:
        counts = self._models.get(name, ModelCounts())
        return ModelSignals(
            model=name,
            arrived_requests_total=counts.requests,
            arrived_tokens_total=counts.tokens,
            waiting_requests=requests,
            waiting_tokens=tokens,
        )


def generation_of(spec: EndpointSpec) -> Generation:
    """Which generation of which deployment an endpoint belongs to."""
    return spec.deployment_id, spec.generation
