"""The platform's desired state as documents, and how a set of documents differs from it.

    kind: deployment        tenant, project, model, model_version, deployment, price_book
    name: small
    parent: small           the name of the model, or of a project's or price book's tenant
    spec:                   the resource's own fields; what is left out has its default
      version: v1           references are names
      replicas: 2

What the control plane writes about itself (generations, progress, scale) and what was made of
secrets (keys) is no desired state. Names identify; ids, versions and times are the store's own.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.spec.deployments import Deployment
from headrace.spec.models import Model, ModelVersion
from headrace.spec.prices import PriceBook
from headrace.spec.priority import priorities_by_word
from headrace.spec.resource import Resource
from headrace.spec.tenancy import Project, Tenant

Spec = dict[str, object]
Key = tuple[str, str, str]  # kind, parent's name, name

kinds: Mapping[str, type[Resource]] = {
    kind.kind: kind for kind in (Tenant, Project, Model, ModelVersion, Deployment, PriceBook)
}
parent_kinds: Mapping[str, type[Resource]] = {
    "project": Tenant,
    "model_version": Model,
    "deployment": Model,
    "price_book": Tenant,
}
may_have_no_parent = ("price_book",)  # then it is everybody's
prunable = ("deployment", "model", "model_version")  # others carry money and history
identity_fields = frozenset(("id", "name", "parent_id", "create_time", "version", "type"))
observed_fields = frozenset(
    (
        *("generation", "generation_max", "former", "progress", "verdict", "scale", "moves_kv"),
        *("header", "files", "created_by"),
    )
)
documents_max = 10_000


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One resource as people write it."""

    kind: str
    name: str
    parent: str = ""
    spec: Spec = {}

    @property
    def key(self) -> Key:
        """What identifies it."""
        return self.kind, self.parent, self.name


class ChangeAction(StrEnum):
    """What is to be done."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Change(msgspec.Struct, frozen=True):
    """One difference; `fields` of an update are name: (now, wanted)."""

    action: ChangeAction
    kind: str
    parent: str
    name: str
    fields: Mapping[str, tuple[object, object]] = {}


class Names:
    """The names behind ids, for references."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._names = {resource.id: resource.name for resource in resources}

    def of(self, resource_id: str) -> str:
        """The name of an id; empty if it is gone."""
        return self._names.get(resource_id, "")


def export(resources: Sequence[Resource]) -> list[Document]:
    """Documents of all resources of the kinds above, parents before their children."""
    names = Names(resources)
    documents = []
    for kind in kinds.values():
        for resource in resources:
            if isinstance(resource, kind):
                documents.append(document_of(resource, names))
    return documents


def document_of(resource: Resource, names: Names) -> Document:
    """One resource as a document."""
    fields = plain(resource)
    match resource:
        case Model():
            fields["targets"] = {
                names.of(target.model_version_id): target.weight for target in resource.targets
            }
        case Deployment():
            fields["version"] = names.of(resource.model_version_id)
            del fields["model_version_id"]
            if resource.autoscaling is not None or resource.disaggregation is not None:
                del fields["replicas"]
    parent = names.of(resource.parent_id) if resource.parent_id else ""
    return Document(kind=resource.kind, name=resource.name, parent=parent, spec=fields)


def plain(resource: Resource) -> Spec:
    """A resource's desired fields as JSON values."""
    fields: Spec = msgspec.json.decode(msgspec.json.encode(resource), type=Spec)
    if isinstance(resource, Tenant):
        fields["priority_highest"] = resource.priority_highest.word
    left_out = identity_fields | observed_fields
    return {name: value for name, value in fields.items() if name not in left_out}


def normal(document: Document) -> Document:
    """The document with every default filled in; InvalidRequest says what is wrong."""
    where = f"{document.kind} {document.name!r}"
    kind = kinds.get(document.kind)
    if kind is None:
        raise InvalidRequest(f"{where}: the kinds are {', '.join(kinds)}", param="kind")
    without_parent = not document.parent and document.kind in may_have_no_parent
    if not without_parent and bool(document.parent) != (document.kind in parent_kinds):
        wanted = "a parent" if document.kind in parent_kinds else "no parent"
        raise InvalidRequest(f"{where}: it has {wanted}", param="parent")
    spec = dict(document.spec)
    references: Spec = {}
    match document.kind:
        case "model":
            references["targets"] = msgspec.convert(spec.pop("targets", {}), dict[str, int])
        case "deployment":
            references["version"] = str(spec.pop("version", ""))
            spec["model_version_id"] = ""
    fields = plain(struct_of(kind, document, spec, where))
    for name in ("model_version_id", "targets"):
        fields.pop(name, None)
    has_own_count = fields.get("autoscaling") or fields.get("disaggregation")
    if document.kind == "deployment" and has_own_count:
        del fields["replicas"]
    return msgspec.structs.replace(document, spec={**fields, **references})


def priority_of(word: str, where: str) -> int:
    """A priority class by its word; InvalidRequest lists them."""
    if word not in priorities_by_word:
        known = ", ".join(priorities_by_word)
        raise InvalidRequest(f"{where}: priority_highest is one of {known}", param="spec")
    return priorities_by_word[word]


def struct_of(kind: type[Resource], document: Document, spec: Spec, where: str) -> Resource:
    """A resource of these fields with no identity yet."""
    unknown = set(spec) - set(kind.__struct_fields__) | (set(spec) & observed_fields)
    if unknown:
        raise InvalidRequest(f"{where}: there is no field {sorted(unknown)[0]!r}", param="spec")
    word = spec.get("priority_highest")
    if kind is Tenant and isinstance(word, str):  # a number in older files
        spec = {**spec, "priority_highest": priority_of(word, where)}
    identity = {"id": "", "name": document.name, "create_time": 0.0, "type": document.kind}
    try:
        return msgspec.convert({**spec, **identity}, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidRequest(f"{where}: {error}", param="spec") from None


def difference(
    wanted: Sequence[Document], present: Sequence[Document], *, prune: bool
) -> list[Change]:
    """What must be done so that `present` becomes `wanted`; empty if nothing.

    Without `prune` what is not named stays; with it, models, versions and deployments go."""
    if len(wanted) > documents_max:
        raise InvalidRequest(f"{len(wanted):,} documents; at most {documents_max:,} at once")
    by_key = {document.key: normal(document) for document in wanted}
    if len(by_key) < len(wanted):
        raise InvalidRequest("two documents name the same resource; keep one of them")
    known = {document.key: normal(document) for document in present}
    changes = []
    for kind in kinds:
        for key, document in by_key.items():
            if key[0] == kind:
                changes += change_of(document, known.get(key))
    if prune:
        for kind in prunable:
            gone = [key for key in known if key[0] == kind and key not in by_key]
            changes += [Change(ChangeAction.DELETE, *key) for key in gone]
    return changes


def change_of(wanted: Document, present: Document | None) -> list[Change]:
    """The change of one resource, if there is one."""
    if present is None:
        return [Change(ChangeAction.CREATE, *wanted.key)]
    fields = {
        name: (present.spec.get(name), value)
        for name, value in wanted.spec.items()
        if present.spec.get(name) != value
    }
    return [Change(ChangeAction.UPDATE, *wanted.key, fields)] if fields else []
