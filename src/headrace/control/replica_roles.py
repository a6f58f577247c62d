"""Which replica computes prompts and which answers, where a deployment splits requests: pure.

Replicas of both kinds are started alike, so a role is only a word that gateways read, and moves to
another replica when the numbers change. Each generation has its own, because KV goes between
replicas of one generation only. Where the engine's part is an argument of its start, a replica has
its role before it is started and for as long as it is there, and the numbers stay.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import msgspec

from headrace.adapters.registry import find_adapter
from headrace.base.errors import InvalidRequest
from headrace.spec.deployments import Deployment, Replica, Template
from headrace.spec.disaggregation import Disaggregation, ReplicaRole
from headrace.spec.rollout import RolloutStrategy


def check_split(deployment: Deployment, template: Template, present: Deployment | None) -> None:
    """Refuse a deployment that is to split requests where its engine cannot, or as it cannot.

    `template` is what its replicas will be, `present` the deployment as it is; None: there is none
    yet."""
    policy = deployment.disaggregation
    assert policy is not None
    engine = template.engine
    if template.upstream is not None or not find_adapter(engine).facts.moves_kv:
        _refuse(f"headrace starts no {engine!r} whose replicas move KV to each other")
    if deployment.autoscaling is not None:
        _refuse(f"it has {policy.replicas} replicas; leave out autoscaling")
    if not find_adapter(engine).facts.roles_are_fixed:
        return
    if deployment.rollout.strategy is not RolloutStrategy.BLUE_GREEN:
        _refuse(
            f"replicas of {engine!r} do half of a request each, and those of two generations do "
            "not meet; choose the rollout strategy blue-green"
        )
    before = None if present is None or present.engine != engine else present.disaggregation
    if before is not None and (before.prefill, before.decode) != (policy.prefill, policy.decode):
        _refuse(
            f"a replica of {engine!r} keeps its part; make another deployment with the other "
            "numbers, or turn the split off and on again"
        )


def _refuse(why: str) -> NoReturn:
    raise InvalidRequest(f"disaggregation: {why}", param="disaggregation")


def changed_roles(deployment: Deployment, replicas: Sequence[Replica]) -> list[Replica]:
    """The wanted replicas whose role is not what it should be, each with the right one.

    Who has a role keeps it as long as it is needed. One replica of a generation always answers,
    before any computes prompts alone."""
    generations = {replica.generation for replica in replicas}
    wanted: list[Replica] = []
    for generation in generations:
        own = [replica for replica in replicas if replica.generation == generation]
        template = deployment.template_of(generation)
        if template is not None and keeps_roles(template.engine):
            wanted += with_fixed_roles(deployment.disaggregation, template, own)
        else:
            wanted += with_roles(deployment, own)
    present = {replica.id: replica.role for replica in replicas}
    return [replica for replica in wanted if present[replica.id] is not replica.role]


def keeps_roles(engine: str) -> bool:
    """Whether a replica's role is an argument of its start; not of an engine that nobody knows,
    whose launch tells so."""
    with suppress(InvalidRequest):
        return find_adapter(engine).facts.roles_are_fixed
    return False


def with_roles(deployment: Deployment, replicas: Sequence[Replica]) -> list[Replica]:
    """One generation's replicas, in their order, each with the role that it should have."""
    policy = deployment.disaggregation
    if policy is None:
        return [_as(replica, ReplicaRole.WHOLE) for replica in replicas]
    prefill = min(policy.prefill, max(0, len(replicas) - 1))
    ranked = sorted(replicas, key=lambda replica: replica.role is not ReplicaRole.PREFILL)
    chosen = {replica.id for replica in ranked[:prefill]}
    return [
        _as(replica, ReplicaRole.PREFILL if replica.id in chosen else ReplicaRole.DECODE)
        for replica in replicas
    ]


def with_fixed_roles(
    policy: Disaggregation | None, template: Template, replicas: Sequence[Replica]
) -> list[Replica]:
    """The same where a role is an argument: who has none yet gets the one that is missing."""
    if policy is None or not template.moves_kv:  # its replicas were not started so
        return list(replicas)
    missing = policy.prefill - sum(each.role is ReplicaRole.PREFILL for each in replicas)
    chosen: list[Replica] = []
    for replica in replicas:
        role = replica.role
        if role is ReplicaRole.WHOLE:
            role = ReplicaRole.PREFILL if missing > 0 else ReplicaRole.DECODE
            missing -= role is ReplicaRole.PREFILL
        chosen.append(_as(replica, role))
    return chosen


def _as(replica: Replica, role: ReplicaRole) -> Replica:
    return replica if replica.role is role else msgspec.structs.replace(replica, role=role)
