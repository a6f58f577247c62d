"""How a deployment's requests are split, as callers write it."""

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.control.admin.struct_values import Policy, read
from headrace.control.replica_roles import check_split
from headrace.spec.deployments import Deployment, Template
from headrace.spec.disaggregation import Disaggregation


def with_disaggregation(deployment: Deployment, value: Policy | None) -> Deployment:
    """A new deployment with so many replicas of each kind, if it is to split requests.

    InvalidRequest where its engine cannot, or its number of replicas is not fixed."""
    policy = None if value is None else read(value, Disaggregation, "disaggregation")
    if policy is None:
        return deployment
    made = msgspec.structs.replace(
        deployment, disaggregation=policy, replicas=policy.replicas, moves_kv=True
    )
    check_split(made, made.template, None)
    return made


def changed_disaggregation(
    deployment: Deployment,
    template: Template,
    changes: dict[str, object],
    value: Policy | None,
    *,
    is_given: bool,
) -> Template:
    """The template with or without moving KV; what else changes is added to `changes`.

    InvalidRequest as above."""
    policy = deployment.disaggregation
    if is_given:
        policy = None if value is None else read(value, Disaggregation, "disaggregation")
        changes["disaggregation"] = policy
    if policy is not None:
        check_split(msgspec.structs.replace(deployment, **changes), template, deployment)
        if changes.setdefault("replicas", policy.replicas) not in (0, policy.replicas):
            raise InvalidRequest(
                f"disaggregation has {policy.prefill} + {policy.decode} replicas; change those "
                "numbers, or give 0 to stop all",
                param="replicas",
            )
    return msgspec.structs.replace(template, moves_kv=policy is not None)
