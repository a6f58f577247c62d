"""Structural tags: an answer that is free text but for parts that begin in a certain way.

Two shapes, as vLLM and SGLang take them in `response_format`: `structures` with `triggers`, the
older one, and `format`, a tree. A type of the tree that is not here is refused by name.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

tags_max = 128
text_length_max = 1024  # characters of a begin, an end, a trigger, a separator
pattern_length_max = 128 * 1024  # characters of a regular expression or a grammar

Text = Annotated[str, Meta(max_length=text_length_max)]
Opening = Annotated[str, Meta(min_length=1, max_length=text_length_max)]
Pattern = Annotated[str, Meta(min_length=1, max_length=pattern_length_max)]
Triggers = Annotated[list[Opening], Meta(min_length=1, max_length=tags_max)]


class LegacyTag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of the older shape: JSON between two texts."""

    begin: Opening
    schema: dict[str, Any] | bool | str
    end: Text


class ConstString(msgspec.Struct, frozen=True, tag="const_string", forbid_unknown_fields=True):
    """Exactly this text."""

    value: Opening


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema", forbid_unknown_fields=True):
    """JSON that fits a schema."""

    json_schema: dict[str, Any] | bool


class Regex(msgspec.Struct, frozen=True, tag="regex", forbid_unknown_fields=True):
    """What a regular expression matches."""

    pattern: Pattern


class LarkGrammar(msgspec.Struct, frozen=True, tag="grammar", forbid_unknown_fields=True):
    """What a grammar in Lark's notation writes."""

    grammar: Pattern


class AnyText(msgspec.Struct, frozen=True, tag="any_text", forbid_unknown_fields=True):
    """Anything, as far as the text that follows it."""


class Sequence(msgspec.Struct, frozen=True, tag="sequence", forbid_unknown_fields=True):
    """One after the other."""

    elements: Annotated[list["Format"], Meta(min_length=1, max_length=tags_max)]


class Either(msgspec.Struct, frozen=True, tag="or", forbid_unknown_fields=True):
    """One of them."""

    elements: Annotated[list["Format"], Meta(min_length=1, max_length=tags_max)]


class Tag(msgspec.Struct, frozen=True, tag="tag", forbid_unknown_fields=True):
    """Something between two texts."""

    begin: Opening
    content: "Format"
    end: Text


Tags = Annotated[list[Tag], Meta(min_length=1, max_length=tags_max)]


class TriggeredTags(msgspec.Struct, frozen=True, tag="triggered_tags", forbid_unknown_fields=True):
    """Free text in which a trigger can only go on as one of the tags."""

    triggers: Triggers
    tags: Tags
    at_least_one: bool = False
    stop_after_first: bool = False  # the answer ends after its first tag


class SeparatedTags(
    msgspec.Struct, frozen=True, tag="tags_with_separator", forbid_unknown_fields=True
):
    """Tags with a text between them, and nothing else."""

    tags: Tags
    separator: Text
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString
    | JsonSchema
    | Regex
    | LarkGrammar
    | AnyText
    | Sequence
    | Either
    | Tag
    | TriggeredTags
    | SeparatedTags
)
