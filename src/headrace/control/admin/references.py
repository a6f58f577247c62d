"""How people name things: by id, by name, or by the parent's name and the name, `acme/default`."""

import re
from typing import Annotated, TypeVar

from pydantic import StringConstraints

from headrace.base.errors import InvalidRequest, NotFound
from headrace.base.ids import alphabet, body_length
from headrace.spec.resource import Resource
from headrace.storage.store import Store

R = TypeVar("R", bound=Resource)

id_pattern = re.compile(rf"[a-z]+_[{alphabet}]{{{body_length}}}")

Name = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length=1, max_length=63)
]
ModelName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$", min_length=1, max_length=128)
]
Reference = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def resolve(
    store: Store, kind: type[R], reference: str, parent_kind: type[Resource] | None = None
) -> R:
    """The one resource that `reference` names.

    `parent_kind` allows the form `parent/name`. NotFound if there is none, InvalidRequest if a
    bare name fits several."""
    if id_pattern.fullmatch(reference):
        return store.get(kind, reference)
    if parent_kind is None:
        matches = [item for item in store.list(kind) if item.name == reference]
    else:
        parent_name, slash, name = reference.rpartition("/")
        parent_ids = {item.id for item in store.list(parent_kind) if item.name == parent_name}
        matches = [
            item
            for item in store.list(kind)
            if item.name == (name if slash else reference)
            and (not slash or item.parent_id in parent_ids)
        ]
    word = kind.kind.replace("_", " ")
    if not matches:
        raise NotFound(f"there is no {word} named {reference!r}", param=kind.kind)
    if len(matches) > 1:
        ids = ", ".join(item.id for item in matches[:5])
        raise InvalidRequest(
            f"{len(matches)} {word}s are named {reference!r}; name one by its id ({ids})",
            param=kind.kind,
        )
    return matches[0]


def reject_id_as_name(name: str) -> None:
    """Refuse a name that looks like an id, which would hide the resource of that id."""
    if id_pattern.fullmatch(name):
        raise InvalidRequest(f"{name!r} looks like an id; choose another name", param="name")
