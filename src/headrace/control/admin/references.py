"""How people name things: by id, by name, or by the parent's name and the name, `acme/default`."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Protocol, TypeVar

from pydantic import StringConstraints

from headrace.base.errors import InvalidRequest, NotFound
from headrace.base.ids import alphabet, body_length
from headrace.spec.resource import Resource

R = TypeVar("R", bound=Resource)
close_max, others_max = 3, 6  # names that an error tells


class ResourceReader(Protocol):
    """What names are looked up in: the store, or what a caller sees of it."""

    def get(self, kind: type[R], resource_id: str) -> R:
        """The resource of that id; NotFound if there is none."""
        ...

    def list(self, kind: type[R], parent_id: str | None = None) -> list[R]:
        """The resources of a kind."""
        ...


secret_prefixes = ("hr_", "hrs_", "hrn_")  # of API keys, service accounts' and nodes' tokens
id_pattern = re.compile(rf"[a-z]+_[{alphabet}]{{{body_length}}}")

name_pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
model_name_pattern = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
month_pattern = r"^20\d\d-(0[1-9]|1[0-2])$"
currency_pattern = r"^[A-Z]{3}$"
optional_currency_pattern = r"^([A-Z]{3})?$"
country_pattern = r"^([A-Z]{2})?$"
currency_words = "a currency is three capital letters, as EUR"
pattern_words = {
    name_pattern: "use letters, digits, `.`, `_` and `-`, and begin with a letter or digit",
    model_name_pattern: "use letters, digits and `.`, `_`, `:`, `/`, `-`, and begin with a letter "
    "or digit",
    month_pattern: "a month is written as 2026-11",
    currency_pattern: currency_words,
    optional_currency_pattern: currency_words,
    country_pattern: "a country is two capital letters, as DE",
}

Name = Annotated[str, StringConstraints(pattern=name_pattern, min_length=1, max_length=63)]
ModelName = Annotated[
    str, StringConstraints(pattern=model_name_pattern, min_length=1, max_length=128)
]
Reference = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def resolve(
    store: ResourceReader, kind: type[R], reference: str, parent_kind: type[Resource] | None = None
) -> R:
    """The one resource that `reference` names.

    `parent_kind` allows the form `parent/name`. NotFound if there is none, InvalidRequest if a
    bare name fits several, or if it is a secret."""
    if reference.startswith(secret_prefixes):
        raise InvalidRequest(  # without repeating it
            "this is the text of a key or token; name it by its id or name", param=kind.kind
        )
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
        hint = others_of(reference, (item.name for item in store.list(kind)))
        raise NotFound(f"there is no {word} named {reference!r}; {hint}", param=kind.kind)
    if len(matches) > 1:
        ids = ", ".join(item.id for item in matches[:5])
        raise InvalidRequest(
            f"{len(matches)} {word}s are named {reference!r}; name one by its id ({ids})",
            param=kind.kind,
        )
    return matches[0]


def others_of(reference: str, names: Iterable[str]) -> str:
    """What may have been meant by a name that is nobody's, of those that the caller may see."""
    known = sorted(set(names))
    close = get_close_matches(reference.rpartition("/")[2], known, close_max)
    close = close or [name for name in known if name.startswith(reference)][:close_max]
    if close:
        return f"did you mean {' or '.join(close)}?"
    if not known:
        return "none was made yet"
    more = ", ..." if len(known) > others_max else ""
    return f"there is {', '.join(known[:others_max])}{more}"


def reject_id_as_name(name: str) -> None:
    """Refuse a name that looks like an id or a key, which would hide the resource of that id."""
    if id_pattern.fullmatch(name) or name.startswith(secret_prefixes):
        raise InvalidRequest("the name looks like an id or a key; choose another", param="name")
