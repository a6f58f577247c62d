"""Which replica computes prompts and which answers, where a deployment splits requests: pure.

Replicas of both kinds are started alike, so a role is only a word that gateways read, and moves to
another replica when the numbers change. Each generation has its own, because KV goes between
replicas of one generation only.
"""

from collections.abc import Sequence

import msgspec

from headrace.adapters.registry import find_adapter
from headrace.base.errors import InvalidRequest
from headrace.spec.deployments import Deployment, Replica, Template
from headrace.spec.disaggregation import Disaggregation, ReplicaRole


def check_split(policy: Disaggregation, template: Template, *, scales: bool) -> None:
    """Refuse to split requests where the engine cannot, or where the numbers are not fixed."""
    engine = template.engine
    if template.upstream is not None or not find_adapter(engine).facts.moves_kv:
        raise InvalidRequest(
            f"disaggregation: headrace starts no {engine!r} whose replicas move KV to each other",
            param="disaggregation",
        )
    if scales:
        raise InvalidRequest(
            f"disaggregation has {policy.replicas} replicas; leave out autoscaling",
            param="disaggregation",
        )


def changed_roles(deployment: Deployment, replicas: Sequence[Replica]) -> list[Replica]:
    """The wanted replicas whose role is not what it should be, each with the right one.

    Who has a role keeps it as long as it is needed. One replica of a generation always answers,
    before any computes prompts alone."""
    generations = {replica.generation for replica in replicas}
    wanted: list[Replica] = []
    for generation in generations:
        own = [replica for replica in replicas if replica.generation == generation]
        wanted += with_roles(deployment, own)
    present = {replica.id: replica.role for replica in replicas}
    return [replica for replica in wanted if present[replica.id] is not replica.role]


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


def _as(replica: Replica, role: ReplicaRole) -> Replica:
    return replica if replica.role is role else msgspec.structs.replace(replica, role=role)
