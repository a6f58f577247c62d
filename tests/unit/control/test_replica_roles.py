"""Which replicas compute prompts for the others."""

from collections.abc import Sequence
from itertools import product

import pytest
from msgspec.structs import replace

from headrace.control.replica_roles import changed_roles
from headrace.spec.deployments import Deployment, Replica
from headrace.spec.disaggregation import Disaggregation, ReplicaRole

plain = Deployment(id="dep_1", name="d", parent_id="mdl_1", create_time=0.0, model_version_id="v")


def replicas_of(kinds: Sequence[tuple[ReplicaRole, int]]) -> list[Replica]:
    return [
        Replica(
            id=f"rep_{number}",
            name=f"d-{number}",
            parent_id="dep_1",
            create_time=0.0,
            role=role,
            generation=generation,
        )
        for number, (role, generation) in enumerate(kinds)
    ]


def applied(deployment: Deployment, replicas: list[Replica]) -> list[Replica]:
    changed = {replica.id: replica for replica in changed_roles(deployment, replicas)}
    return [changed.get(replica.id, replica) for replica in replicas]


@pytest.mark.parametrize(
    "policy",
    [None, Disaggregation(), Disaggregation(prefill=2, decode=1), Disaggregation(decode=3)],
    ids=str,
)
@pytest.mark.parametrize("count", range(5))
def test_each_generation_has_its_roles_and_somebody_always_answers(
    policy: Disaggregation | None, count: int
) -> None:
    deployment = replace(plain, disaggregation=policy)
    for kinds in product(product(ReplicaRole, (1, 2)), repeat=count):
        after = applied(deployment, replicas_of(kinds))
        assert changed_roles(deployment, after) == []
        for generation in (1, 2):
            own = [replica.role for replica in after if replica.generation == generation]
            wanted = 0 if policy is None else min(policy.prefill, max(0, len(own) - 1))
            rest = ReplicaRole.WHOLE if policy is None else ReplicaRole.DECODE
            assert own.count(ReplicaRole.PREFILL) == wanted
            assert own.count(rest) == len(own) - wanted


def test_who_has_a_role_keeps_it() -> None:
    deployment = replace(plain, disaggregation=Disaggregation(prefill=1, decode=2))
    kinds = [(ReplicaRole.DECODE, 1), (ReplicaRole.PREFILL, 1), (ReplicaRole.WHOLE, 1)]
    (changed,) = changed_roles(deployment, replicas_of(kinds))
    assert (changed.id, changed.role) == ("rep_2", ReplicaRole.DECODE)
