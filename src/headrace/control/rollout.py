"""How many replicas of the new and of the old generation there should be now: a pure function.

    rolling      new: active + surge        old: wanted - new active
    blue-green   new: all, at 0%            old: all     -> 100%, old stay for `bake_s` -> rolling
    canary       new: share of the step     old: the rest, each step for its pause -> rolling

A rollout is over when the wanted number of the new generation serves and nothing else is left. It
is rolled back when the new generation does not start, or does harm that the old one does not do
(`rollout_health`). Only the world and what the deployment says of itself are read, so that lost,
repeated and reordered wake-ups change nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.control.rollout_health import GenerationHealth, harm_of
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.rollout import RolloutProgress, RolloutStrategy, RolloutVerdict


@dataclass(frozen=True, slots=True)
class Staff:
    """How many replicas of each generation to have."""

    current: int
    former: int
    relaunches_former: bool = False  # those that fail come back; else only serving ones are kept


@dataclass(frozen=True, slots=True)
class Census:
    """The replicas that do not drain, counted."""

    current: int
    current_active: int
    former: int
    former_active: int

    @classmethod
    def of(cls, deployment: Deployment, replicas: Sequence[Replica]) -> "Census":
        """Count them."""
        live = [replica for replica in replicas if replica.state is not ReplicaState.DRAINING]
        own = [replica for replica in live if replica.generation == deployment.generation]
        active = [replica for replica in live if replica.state is ReplicaState.ACTIVE]
        own_active = [replica for replica in active if replica.generation == deployment.generation]
        return cls(
            current=len(own),
            current_active=len(own_active),
            former=len(live) - len(own),
            former_active=len(active) - len(own_active),
        )


def next_deployment(
    deployment: Deployment,
    replicas: Sequence[Replica],
    health: Mapping[int, GenerationHealth],
    now_s: float,
) -> Deployment:
    """The deployment with its rollout a step on, ended or rolled back; the same if none is due."""
    progress = deployment.progress
    if progress is None:
        return deployment
    census = Census.of(deployment, replicas)
    if census.former == 0 and census.current_active >= deployment.replicas:
        return ended(deployment, progress, now_s)
    if progress.is_paused or progress.is_rollback:
        return deployment
    reason = reason_to_go_back(deployment, replicas, health)
    if reason:
        verdict = RolloutVerdict(
            generation=deployment.generation, succeeded=False, reason=reason, time=now_s
        )
        return msgspec.structs.replace(deployment.rolled_back(), verdict=verdict)
    moved = next_progress(deployment, progress, census, now_s)
    return msgspec.structs.replace(deployment, progress=moved)


def ended(deployment: Deployment, progress: RolloutProgress, now_s: float) -> Deployment:
    """The deployment with a rollout that is over; a rollback keeps the verdict that began it."""
    if progress.is_rollback:
        return msgspec.structs.replace(deployment, progress=None)
    verdict = RolloutVerdict(
        generation=deployment.generation, succeeded=True, reason="all replicas serve", time=now_s
    )
    return msgspec.structs.replace(deployment, progress=None, verdict=verdict)


def reason_to_go_back(
    deployment: Deployment, replicas: Sequence[Replica], health: Mapping[int, GenerationHealth]
) -> str:
    """Why the new generation must go; empty if nothing speaks against it."""
    policy = deployment.rollout
    if not policy.rolls_back or deployment.former is None:
        return ""
    own = [replica for replica in replicas if replica.generation == deployment.generation]
    if not any(replica.state is ReplicaState.ACTIVE for replica in own):
        for replica in own:
            if replica.state is ReplicaState.FAILED and replica.attempts >= policy.starts_max:
                return f"{replica.name} did not start in {replica.attempts} tries: {replica.detail}"
    former = health.get(deployment.former.generation, GenerationHealth())
    return harm_of(policy, health.get(deployment.generation, GenerationHealth()), former)


def next_progress(
    deployment: Deployment, progress: RolloutProgress, census: Census, now_s: float
) -> RolloutProgress:
    """The step that is due."""
    policy = deployment.rollout
    match policy.strategy:
        case RolloutStrategy.ROLLING:
            return msgspec.structs.replace(progress, weight=None)
        case RolloutStrategy.BLUE_GREEN:
            if progress.step == 0 and census.current_active >= deployment.replicas:
                return msgspec.structs.replace(progress, step=1, step_time=now_s, weight=100)
            return progress if progress.step else msgspec.structs.replace(progress, weight=0)
        case RolloutStrategy.CANARY:
            return next_canary_step(deployment, progress, census, now_s)


def next_canary_step(
    deployment: Deployment, progress: RolloutProgress, census: Census, now_s: float
) -> RolloutProgress:
    """Begin a step's pause when its replicas serve, and the next step when that is over."""
    steps = deployment.rollout.steps
    if progress.step >= len(steps):
        return msgspec.structs.replace(progress, weight=None)
    step = steps[progress.step]
    progress = msgspec.structs.replace(progress, weight=step.weight)
    if census.current_active < canary_share(deployment, step.weight):
        return msgspec.structs.replace(progress, step_time=None)
    if progress.step_time is None:
        return msgspec.structs.replace(progress, step_time=now_s)
    if now_s < progress.step_time + step.pause_s:
        return progress
    return msgspec.structs.replace(progress, step=progress.step + 1, step_time=None)


def canary_share(deployment: Deployment, weight: int) -> int:
    """Replicas of the new generation for a share of the requests; at least one."""
    return min(deployment.replicas, max(1, math.ceil(deployment.replicas * weight / 100)))


def staff(deployment: Deployment, replicas: Sequence[Replica], now_s: float) -> Staff:
    """How many of each generation to have now."""
    wanted, progress = deployment.replicas, deployment.progress
    census = Census.of(deployment, replicas)
    if progress is None or progress.is_rollback:
        return Staff(wanted, max(0, wanted - census.current_active))
    if progress.is_paused:
        kept = min(census.former, wanted)
        return Staff(max(census.current, wanted - kept), kept, relaunches_former=True)
    policy = deployment.rollout
    if policy.strategy is RolloutStrategy.BLUE_GREEN and not baked(deployment, progress, now_s):
        return Staff(wanted, wanted, relaunches_former=True)
    if policy.strategy is RolloutStrategy.CANARY and progress.step < len(policy.steps):
        share = canary_share(deployment, policy.steps[progress.step].weight)
        kept = max(wanted - min(census.current_active, share), min(1, wanted))
        current = max(share, wanted - census.former)
        return Staff(current, kept, relaunches_former=True)
    surging = max(census.current_active + policy.surge, wanted - census.former_active)
    return Staff(min(wanted, surging), max(0, wanted - census.current_active))


def baked(deployment: Deployment, progress: RolloutProgress, now_s: float) -> bool:
    """Whether the new generation had all requests for long enough."""
    if progress.step == 0 or progress.step_time is None:
        return False
    return now_s >= progress.step_time + deployment.rollout.bake_s
