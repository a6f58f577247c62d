"""Routes for the whole desired state at once: export it, compare it, make it so."""

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, JsonValue

from headrace.base.errors import InvalidRequest
from headrace.control.admin.access import actor_of
from headrace.control.admin.context import Context
from headrace.control.admin.values import RequestBody
from headrace.control.manifest import Change, Document, documents_max, export
from headrace.control.manifest_apply import all_resources, apply_manifest

router = APIRouter()


class ManifestBody(RequestBody):
    """Documents, and how far to go."""

    documents: list[dict[str, JsonValue]] = Field(max_length=documents_max)
    prune: bool = False
    dry_run: bool = False


class FieldView(BaseModel):
    """One field that differs."""

    name: str
    now: JsonValue
    wanted: JsonValue


class ChangeView(BaseModel):
    """One thing that was done, or would be."""

    action: str
    kind: str
    parent: str
    name: str
    fields: list[FieldView]


class ManifestAnswer(BaseModel):
    """All of them, in order."""

    changes: list[ChangeView]
    applied: bool


class ManifestView(BaseModel):
    """The desired state."""

    documents: list[dict[str, JsonValue]]


@router.get("/manifest")
def export_manifest(context: Context) -> ManifestView:
    """Write the desired state as documents; applied to this platform they change nothing."""
    documents = export(all_resources(context.database.store))
    return ManifestView(documents=msgspec.json.decode(msgspec.json.encode(documents)))


@router.post("/manifest")
def change_by_manifest(body: ManifestBody, context: Context, request: Request) -> ManifestAnswer:
    """Make the platform as the documents say, all or nothing; `dry_run` only says what differs."""
    try:
        documents = msgspec.convert(body.documents, list[Document])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"documents: {error}", param="documents") from None
    changes = apply_manifest(
        context.database,
        documents,
        context.clock,
        prune=body.prune,
        dry_run=body.dry_run,
        by=actor_of(request).name,
    )
    return ManifestAnswer(
        changes=[change_view(change) for change in changes], applied=not body.dry_run
    )


def change_view(change: Change) -> ChangeView:
    """A change as JSON."""
    fields = msgspec.json.decode(msgspec.json.encode(change.fields))
    return ChangeView(
        action=change.action.value,
        kind=change.kind,
        parent=change.parent,
        name=change.name,
        fields=[FieldView(name=n, now=now, wanted=wanted) for n, (now, wanted) in fields.items()],
    )
