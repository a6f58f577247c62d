"""A model file's vocabulary, checked: token texts, kinds and merges that agree with each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NoReturn

import numpy as np

from headrace.base.errors import ModelFileError

tokens_max = 1 << 22


class TokenKind(IntEnum):
    """GGUF's token types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


control_kinds = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN})
literal_kinds = control_kinds | {TokenKind.USER_DEFINED}  # texts as they are, not byte-encoded


def _byte_characters() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself if visible, else the next free from 256."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    characters = {chr(byte): byte for byte in visible}
    return characters | {chr(256 + index): byte for index, byte in enumerate(hidden)}


byte_of_character = _byte_characters()


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, and the merges that build them."""

    texts: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[tuple[str, str]]

    def __len__(self) -> int:
        return len(self.texts)

    def kind(self, token_id: int) -> int:
        """The kind of one token."""
        return self.kinds[token_id]

    def bytes_of(self, token_id: int) -> bytes:
        """What a token stands for."""
        text = self.texts[token_id]
        if self.kinds[token_id] in literal_kinds:
            return text.encode()
        try:
            return bytes(byte_of_character[character] for character in text)
        except KeyError:  # not byte-encoded after all
            return text.encode()

    @cached_property
    def mergeable_ids(self) -> dict[str, int]:
        """Ids of what merging may give: never a control token, whatever a user's text says."""
        ids: dict[str, int] = {}
        for token_id, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True)):
            if text and kind not in control_kinds:
                ids.setdefault(text, token_id)
        return ids

    def literal_ids(self, kinds: frozenset[TokenKind]) -> dict[str, int]:
        """Ids of the tokens of these kinds that text may name."""
        ids: dict[str, int] = {}
        for token_id, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True)):
            if text and kind in kinds:
                ids.setdefault(text, token_id)
        return ids


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Take the vocabulary out of a file's metadata; ModelFileError names what contradicts."""
    texts = _strings(metadata, "tokenizer.ggml.tokens")
    if not 0 < len(texts) <= tokens_max:
        fail(
            "tokenizer.ggml.tokens", f"{len(texts)} tokens; between 1 and {tokens_max} are allowed"
        )
    vocabulary = Vocabulary(texts, _kinds(metadata, len(texts)), _merges(metadata))
    _check_merges(vocabulary)
    return vocabulary


def fail(field: str, problem: str) -> NoReturn:
    """Raise ModelFileError naming a metadata field."""
    raise ModelFileError(
        f"{field}: {problem}. The model file's tokenizer cannot be used; fetch or convert the file "
        "again.",
        field=field,
    )


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        fail(key, "is missing" if value is None else "is not a list of strings")
    return value


def _kinds(metadata: Mapping[str, object], count: int) -> list[int]:
    key = "tokenizer.ggml.token_type"
    value = metadata.get(key)
    if value is None:
        return [int(TokenKind.NORMAL)] * count
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
        fail(key, "is not a list of integers")
    if len(value) != count:
        fail(key, f"has {len(value)} entries for {count} tokens")
    return [int(kind) for kind in value.tolist()]


def _merges(metadata: Mapping[str, object]) -> list[tuple[str, str]]:
    key = "tokenizer.ggml.merges"
    merges: list[tuple[str, str]] = []
    for index, merge in enumerate(_strings(metadata, key)):
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            fail(key, f"entry {index} is not two parts with a space between them")
        merges.append((left, right))
    return merges


def _check_merges(vocabulary: Vocabulary) -> None:
    ids = vocabulary.mergeable_ids
    for index, (left, right) in enumerate(vocabulary.merges):
        if left not in ids or right not in ids or left + right not in ids:
            fail(
                "tokenizer.ggml.merges",
                f"entry {index} needs or makes a token that is not in the vocabulary",
            )
