"""Lets a rule look at each deployment every two seconds, and launches and drains what it says."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from headrace.control.load_evidence import Sample
from headrace.control.scale_loop import look_interval_s
from headrace.control.scaler import added
from headrace.sim.fleet.attempt import Replica
from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.gateway import SimGateway
from headrace.sim.fleet.replicas import Replicas
from headrace.sim.fleet.scaling_rules import EngineLook, Look, ScalingRule
from headrace.sim.fleet.scenario import Scaling
from headrace.sim.fleet.signals import TrafficSignals


@dataclass(slots=True)
class Scaled:
    """One deployment."""

    rule: ScalingRule
    signals: TrafficSignals
    arrived_tokens: int = 0  # as of the last look
    first_tokens: list[int] = field(default_factory=list)
    inter_tokens: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)  # of every look


class Scaler:
    """The autoscaler of all deployments."""

    def __init__(
        self,
        loop: Loop,
        replicas: Replicas,
        gateway: SimGateway,
        scaling: Scaling,
        *,
        start_s: float,
        until_s: float,
    ) -> None:
        self._loop = loop
        self._replicas = replicas
        self._gateway = gateway
        self._scaling = scaling
        self._start_s = start_s
        self._until_s = until_s
        self._scaled: dict[int, Scaled] = {}

    def start(self, deployments: int, make: Callable[[], ScalingRule]) -> None:
        """Follow so many deployments, with a rule each."""
        for deployment in range(deployments):
            signals = self._gateway.signals[deployment] = TrafficSignals()
            self._scaled[deployment] = Scaled(make(), signals)
        self._loop.after(look_interval_s, self._look, None)

    def turns_per_hour(self) -> float:
        """How often a deployment turned from more to fewer or back, on the mean."""
        turns = sum(direction_changes(scaled.wanted) for scaled in self._scaled.values())
        return turns * 3600.0 / (self._until_s * len(self._scaled))

    def _look(self, _: None) -> None:
        for deployment, scaled in self._scaled.items():
            self._scale(deployment, scaled)
        if self._loop.now_s + look_interval_s < self._until_s:
            self._loop.after(look_interval_s, self._look, None)

    def _scale(self, deployment: int, scaled: Scaled) -> None:
        present = self._replicas.of(deployment)
        serving = [replica for replica in present if not replica.is_starting]
        look = Look(
            self._sample(deployment, scaled, serving),
            len(present),
            len(present) - len(serving),
            [self._engine_look(replica) for replica in serving],
        )
        wanted = min(self._scaling.max, max(self._scaling.min, scaled.rule.wanted(look)))
        scaled.wanted.append(wanted)
        for _ in range(wanted - len(present)):
            self._replicas.launch(deployment)
        for replica in sorted(present, key=self._worth)[: max(0, len(present) - wanted)]:
            self._replicas.drain(replica)

    def _worth(self, replica: Replica) -> tuple[bool, int, int]:
        """Who goes first: those that start, then the least busy, then the youngest."""
        endpoint = self._replicas.endpoints.find(replica.name)
        busy = 0 if endpoint is None else endpoint.in_flight_requests
        return not replica.is_starting, busy, -replica.index

    def _engine_look(self, replica: Replica) -> EngineLook:
        endpoint = self._replicas.endpoints.find(replica.name)
        assert endpoint is not None
        return EngineLook(
            endpoint.queued_prefill_tokens, endpoint.in_flight_requests, endpoint.held_fresh_tokens
        )

    def _sample(self, deployment: int, scaled: Scaled, serving: list[Replica]) -> Sample:
        signals = scaled.signals
        waiting_requests, waiting_tokens = self._gateway.waiting(deployment)
        found = [self._replicas.endpoints.find(replica.name) for replica in serving]
        endpoints = [endpoint for endpoint in found if endpoint is not None]
        sample = Sample(
            time_s=self._loop.now_s,
            tokens_per_s=(signals.arrived_tokens - scaled.arrived_tokens) / look_interval_s,
            waiting_requests=waiting_requests,
            waiting_tokens=waiting_tokens + sum(e.queued_prefill_tokens for e in endpoints),
            in_flight_requests=sum(e.in_flight_requests for e in endpoints),
            kv_share=sum(e.kv_share() for e in endpoints) / max(1, len(endpoints)),
            first_tokens=added(signals.first_tokens, scaled.first_tokens),
            inter_tokens=added(signals.inter_tokens, scaled.inter_tokens),
            active_replicas=len(serving),
            lead_s=self._start_s,
        )
        scaled.arrived_tokens = signals.arrived_tokens
        scaled.first_tokens = list(signals.first_tokens)
        scaled.inter_tokens = list(signals.inter_tokens)
        return sample


def direction_changes(counts: list[int]) -> int:
    """How often steps up follow steps down, or the other way round."""
    steps = [after - before for before, after in pairwise(counts) if after != before]
    return sum((one > 0) != (other > 0) for one, other in pairwise(steps))
