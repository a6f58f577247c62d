"""Which replicas compute prompts for the others."""

from collections.abc import Sequence
from itertools import product
from typing import Any

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


def halves(**changes: Any) -> Deployment:
    values = {"engine": "sglang", "moves_kv": True, **changes}
    return replace(plain, disaggregation=Disaggregation(decode=2), **values)


def test_a_half_has_its_role_before_its_start_and_keeps_it() -> None:
    whole, prefill, decode = ReplicaRole.WHOLE, ReplicaRole.PREFILL, ReplicaRole.DECODE
    after = [replica.role for replica in applied(halves(), replicas_of([(whole, 1)] * 3))]
    assert after == [prefill, decode, decode]
    for left in ([prefill], [decode, decode], [decode]):  # nobody changes sides, nor alone
        assert changed_roles(halves(), replicas_of([(role, 1) for role in left])) == []
    healed = applied(halves(), replicas_of([(decode, 1), (decode, 1), (whole, 1)]))
    assert healed[2].role is prefill


def test_generations_that_were_not_started_as_halves_have_no_roles() -> None:
    whole, prefill = ReplicaRole.WHOLE, ReplicaRole.PREFILL
    former = replace(plain.template, engine="sglang")
    on = halves(generation=2, former=former)
    assert [r.role for r in applied(on, replicas_of([(whole, 1), (whole, 2)]))] == [whole, prefill]
    off = replace(plain, generation=2, former=replace(former, moves_kv=True))
    assert changed_roles(off, replicas_of([(prefill, 1), (whole, 2)])) == []
