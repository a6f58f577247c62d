"""Writes the differences of a manifest to the store, all in one transaction or none."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from headrace.adapters.registry import find_adapter
from headrace.base.clock import Clock
from headrace.base.errors import Conflict, InvalidRequest
from headrace.base.ids import new_id
from headrace.control.engine_environment import check_environment
from headrace.control.in_use import check_model_unused, check_version_unused
from headrace.control.manifest import (
    Change,
    ChangeAction,
    Document,
    Key,
    Spec,
    difference,
    export,
    kinds,
    normal,
    parent_kinds,
    struct_of,
)
from headrace.control.model_targets import follow_version
from headrace.control.public_prompts import check_public_prompts
from headrace.control.replica_roles import check_split
from headrace.control.upstreams import check_upstream
from headrace.control.version_facts import with_declared_template, with_local_header
from headrace.spec.deployments import Deployment
from headrace.spec.models import Model, ModelVersion, WeightedTarget
from headrace.spec.resource import Resource
from headrace.storage.database import Database
from headrace.storage.store import Store

R = TypeVar("R", bound=Resource)

immutable = ("model_version", "price_book")


def all_resources(store: Store) -> list[Resource]:
    """Everything that a manifest can name."""
    return [resource for kind in kinds.values() for resource in store.list(kind)]


def apply_manifest(
    database: Database,
    documents: Sequence[Document],
    clock: Clock,
    *,
    prune: bool,
    dry_run: bool,
    by: str = "",
) -> list[Change]:
    """Make the store as the documents say, and return what was (or would be) done; `by` is whose
    wish it is.

    InvalidRequest and Conflict name the document that cannot be; nothing is written then."""
    with database.transaction():
        store = database.store
        changes = difference(documents, export(all_resources(store)), prune=prune)
        wanted = {document.key: normal(document) for document in documents}
        if not dry_run:
            Writer(store, clock, wanted, by).write(changes)
    return changes


class Writer:
    """One application of a manifest."""

    def __init__(self, store: Store, clock: Clock, wanted: Mapping[Key, Document], by: str) -> None:
        self._by = by
        self._store = store
        self._clock = clock
        self._wanted = wanted

    def write(self, changes: Sequence[Change]) -> None:
        """Create, then point models at their versions, then update, then delete."""
        for change in changes:
            if change.action is ChangeAction.CREATE and change.kind != "deployment":
                self._create(self._wanted[change.kind, change.parent, change.name])
        for change in changes:
            if change.kind == "model" and change.action is not ChangeAction.DELETE:
                self._point(self._wanted[change.kind, change.parent, change.name])
        for change in changes:
            document = self._wanted.get((change.kind, change.parent, change.name))
            if change.action is ChangeAction.UPDATE and document is not None:
                self._update(document, change)
            elif change.action is ChangeAction.CREATE and change.kind == "deployment":
                assert document is not None
                self._create_deployment(document)
        gone = [
            self._present(Document(kind=change.kind, name=change.name, parent=change.parent))
            for change in changes
            if change.action is ChangeAction.DELETE
        ]
        for resource in gone:
            self._delete(resource)

    def _create(self, document: Document) -> None:
        built = self._built(document, own_fields(document))
        if isinstance(built, ModelVersion):
            declared = with_declared_template(built)
            built = with_local_header(msgspec.structs.replace(declared, created_by=self._by))
        self._store.create(built)

    def _create_deployment(self, document: Document) -> None:
        version = self._version(document.parent, str(document.spec["version"]))
        fields = own_fields(document) | {"model_version_id": version.id}
        built = self._built(document, fields)
        assert isinstance(built, Deployment)
        check_upstream(built, find_adapter(built.engine), version)
        check_environment(built.environment)
        check_public_prompts(built.template)
        self._store.create(within_bounds(built, None))

    def _built(self, document: Document, fields: Spec) -> Resource:
        kind = kinds[document.kind]
        built = struct_of(kind, document, fields, f"{document.kind} {document.name!r}")
        parent_id = self._parent_id(document)
        return msgspec.structs.replace(
            built,
            id=new_id(kind.id_prefix, self._clock),
            parent_id=parent_id,
            create_time=self._clock.wall_s(),
        )

    def _point(self, document: Document) -> None:
        """Give a model its targets, once all versions are there."""
        model = self._named(Model, document.name)
        targets = msgspec.convert(document.spec["targets"], dict[str, int])
        pointed = tuple(
            WeightedTarget(self._version(document.name, name).id, weight)
            for name, weight in targets.items()
        )
        if pointed != model.targets:
            self._store.update(msgspec.structs.replace(model, targets=pointed))

    def _update(self, document: Document, change: Change) -> None:
        if document.kind in immutable:
            changed_names = ", ".join(change.fields)
            raise Conflict(
                f"the {document.kind.replace('_', ' ')} {document.name!r} never changes "
                f"({changed_names}); "
                "give the new one another name"
            )
        present = self._present(document)
        fields = own_fields(document)
        built = struct_of(kinds[document.kind], document, fields, document.name)
        names = [name for name in fields if name not in ("targets", "model_version_id")]
        changed = msgspec.structs.replace(present, **{n: getattr(built, n) for n in names})
        if isinstance(present, Deployment) and isinstance(changed, Deployment):
            self._update_deployment(document, present, changed)
        elif changed != present:
            self._store.update(changed)

    def _update_deployment(
        self, document: Document, present: Deployment, changed: Deployment
    ) -> None:
        version = self._version(document.parent, str(document.spec["version"]))
        template = msgspec.structs.replace(
            changed.template,
            model_version_id=version.id,
            moves_kv=changed.disaggregation is not None,
        )
        rolled = present.with_template(template)
        wanted = msgspec.structs.replace(
            rolled,
            replicas=changed.replicas,
            rollout=changed.rollout,
            autoscaling=changed.autoscaling,
            hedging=changed.hedging,
            disaggregation=changed.disaggregation,
            placement=changed.placement,
        )
        check_upstream(wanted, find_adapter(wanted.engine), version)
        check_environment(wanted.environment)
        check_public_prompts(wanted.template)
        follow_version(self._store, present, wanted)
        self._store.update(within_bounds(wanted, present))

    def _delete(self, present: Resource) -> None:
        match present:
            case ModelVersion():
                check_version_unused(self._store, present)
            case Model():
                check_model_unused(self._store, present)
        self._store.delete(present)

    def _present(self, document: Document) -> Resource:
        parent_id = self._parent_id(document)
        found = self._store.find(kinds[document.kind], document.name, parent_id)
        assert found is not None, "a change of what is not there"
        return found

    def _parent_id(self, document: Document) -> str:
        if not document.parent:
            return ""
        return self._named(parent_kinds[document.kind], document.parent).id

    def _named(self, kind: type[R], name: str) -> R:
        found = self._store.find(kind, name)
        if found is None:
            raise InvalidRequest(f"there is no {kind.kind} {name!r}, and no document makes one")
        return found

    def _version(self, model_name: str, name: str) -> ModelVersion:
        model = self._named(Model, model_name)
        found = self._store.find(ModelVersion, name, model.id)
        if found is None:
            raise InvalidRequest(f"the model {model_name!r} has no version {name!r}")
        return found


def own_fields(document: Document) -> Spec:
    """The fields of a document that are the resource's own, without references by name."""
    fields = {name: value for name, value in document.spec.items() if name not in references}
    if document.kind == "deployment":
        fields["model_version_id"] = ""
    return fields


references = ("targets", "version")


def within_bounds(deployment: Deployment, present: Deployment | None) -> Deployment:
    """The deployment with a number of replicas that its autoscaling or its roles allow.

    InvalidRequest where its requests cannot be split as it says."""
    split, policy = deployment.disaggregation, deployment.autoscaling
    if split is not None:
        check_split(deployment, deployment.template, present)
        return msgspec.structs.replace(deployment, replicas=split.replicas, moves_kv=True)
    if policy is None:
        return deployment
    replicas = min(policy.max, max(policy.min, deployment.replicas))
    return msgspec.structs.replace(deployment, replicas=replicas)
