"""What still needs a model or a version, so that neither is deleted under something that runs."""

from headrace.base.errors import Conflict
from headrace.spec.deployments import Deployment
from headrace.spec.models import Model, ModelVersion
from headrace.storage.store import Store


def check_version_unused(store: Store, version: ModelVersion) -> None:
    """Conflict with who needs it, if anything does."""
    for deployment in store.list(Deployment, version.parent_id):
        former = deployment.former if deployment.progress is not None else None
        if version.id == deployment.model_version_id or (
            former is not None and version.id == former.model_version_id
        ):
            raise Conflict(
                f"the version {version.name!r} is in use by the deployment {deployment.name!r}; "
                "move it to another version or delete it first"
            )
    model = next((item for item in store.list(Model) if item.id == version.parent_id), None)
    if model is not None and any(
        target.model_version_id == version.id and target.weight > 0 for target in model.targets
    ):
        raise Conflict(
            f"the version {version.name!r} gets traffic of the model {model.name!r}; give its "
            "share to another version first"
        )


def check_model_unused(store: Store, model: Model) -> None:
    """Conflict with the deployment that needs it, if one does."""
    for deployment in store.list(Deployment, model.id):
        raise Conflict(
            f"the model {model.name!r} is in use by the deployment {deployment.name!r}; delete "
            "that first"
        )
    for other in store.list(Model):
        if model.name in other.fallbacks:
            raise Conflict(f"the model {model.name!r} is a fallback of {other.name!r}")
