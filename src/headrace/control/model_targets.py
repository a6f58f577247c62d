"""Keeps a model's traffic on the version that its deployment serves.

All replicas of a deployment answer for its present version, also those of a former generation. So
when a deployment goes to another version, forwards or back, the model's target goes with it, in the
same transaction.
"""

import msgspec

from headrace.spec.deployments import Deployment
from headrace.spec.models import Model, WeightedTarget
from headrace.storage.store import Store


def follow_version(store: Store, before: Deployment, after: Deployment) -> None:
    """Write the model's targets for a deployment that goes from one version to another.

    The version before stays a target only if another deployment still serves it."""
    old, new = before.model_version_id, after.model_version_id
    if old == new:
        return
    model = store.get(Model, after.parent_id)
    weights = {target.model_version_id: target.weight for target in model.targets}
    if old not in weights:
        return  # it served no traffic by that version
    others = [
        deployment
        for deployment in store.list(Deployment, model.id)
        if deployment.id != after.id and deployment.model_version_id == old
    ]
    weight = weights[old]
    if not others:
        weights = {new if name == old else name: share for name, share in weights.items()}
    weights.setdefault(new, weight)
    targets = tuple(WeightedTarget(name, share) for name, share in weights.items())
    store.update(msgspec.structs.replace(model, targets=targets))
