"""A model file's vocabulary, checked: token texts, kinds and merges that agree with each other."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NoReturn

import numpy as np

from headrace.base.errors import ModelFileError

tokens_max = 1 << 22
space_mark = "\u2581"  # SentencePiece's stand-in for a space
sentence_piece_models = ("llama", "t5")  # values of tokenizer.ggml.model
byte_pattern = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenKind(IntEnum):
    """GGUF's token types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


control_kinds = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN})
unmergeable = frozenset({TokenKind.BYTE, TokenKind.UNUSED})  # of SentencePiece's tokens
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
    """Tokens by id, and what builds them: merges (byte-level), or scores (SentencePiece)."""

    texts: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[tuple[str, str]] = ()
    scores: Sequence[float] = ()  # by id; none of a byte-level vocabulary
    unknown_id: int | None = None

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
        if self.scores:
            byte = byte_pattern.fullmatch(text) if self.kinds[token_id] == TokenKind.BYTE else None
            return bytes([int(byte[1], 16)]) if byte else text.replace(space_mark, " ").encode()
        try:
            return bytes(byte_of_character[character] for character in text)
        except KeyError:  # not byte-encoded after all
            return text.encode()

    @cached_property
    def mergeable_ids(self) -> dict[str, int]:
        """Ids of what merging may give: never a control token, whatever a user's text says."""
        ids: dict[str, int] = {}
        for token_id, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True)):
            if text and kind not in control_kinds and not (self.scores and kind in unmergeable):
                ids.setdefault(text, token_id)
        return ids

    @cached_property
    def byte_ids(self) -> list[int]:
        """Ids of the 256 byte tokens in order; empty unless all are there."""
        ids: dict[int, int] = {}
        for token_id, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True)):
            if kind == TokenKind.BYTE and (byte := byte_pattern.fullmatch(text)):
                ids[int(byte[1], 16)] = token_id
        return [ids[byte] for byte in range(256)] if len(ids) == 256 else []

    def literal_ids(self, kinds: frozenset[TokenKind]) -> dict[str, int]:
        """Ids of the tokens of these kinds that text may name."""
        ids: dict[str, int] = {}
        for token_id, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True)):
            if text and kind in kinds:
                ids.setdefault(text, token_id)
        return ids


def read_word_pieces(metadata: Mapping[str, object]) -> Vocabulary:
    """The vocabulary of an encoder's file, which has neither merges nor scores that are used."""
    texts = _texts(metadata)
    return Vocabulary(texts, _kinds(metadata, len(texts)))


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Take the vocabulary out of a file's metadata; ModelFileError names what contradicts."""
    texts = _texts(metadata)
    kinds = _kinds(metadata, len(texts))
    if metadata.get("tokenizer.ggml.model") in sentence_piece_models:
        return Vocabulary(
            texts,
            kinds,
            scores=_scores(metadata, len(texts)),
            unknown_id=_unknown_id(metadata, kinds),
        )
    vocabulary = Vocabulary(texts, kinds, _merges(metadata))
    _check_merges(vocabulary)
    return vocabulary


def fail(field: str, problem: str) -> NoReturn:
    """Raise ModelFileError naming a metadata field."""
    raise ModelFileError(
        f"{field}: {problem}. The model file's tokenizer cannot be used; fetch or convert the file "
        "again.",
        field=field,
    )


def named_id(metadata: Mapping[str, object], name: str, vocabulary: Vocabulary) -> int | None:
    """The token that a metadata field names, or None; ModelFileError if there is no such token."""
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(vocabulary):
        fail(key, f"{value!r} is not the id of one of {len(vocabulary)} tokens")
    return value


def _texts(metadata: Mapping[str, object]) -> list[str]:
    texts = _strings(metadata, "tokenizer.ggml.tokens")
    if not 0 < len(texts) <= tokens_max:
        fail(
            "tokenizer.ggml.tokens", f"{len(texts)} tokens; between 1 and {tokens_max} are allowed"
        )
    return texts


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        fail(key, "is missing" if value is None else "is not a list of strings")
    try:
        "".join(value).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can have
        fail(key, "has a text that is not Unicode")
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


def _scores(metadata: Mapping[str, object], count: int) -> list[float]:
    key = "tokenizer.ggml.scores"
    value = metadata.get(key)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        fail(key, "is missing" if value is None else "is not a list of numbers")
    if len(value) != count or not np.isfinite(value).all():
        fail(key, f"has {len(value)} entries for {count} tokens, or one that is not finite")
    return [float(score) for score in value.tolist()]


def _unknown_id(metadata: Mapping[str, object], kinds: Sequence[int]) -> int | None:
    key = "tokenizer.ggml.unknown_token_id"
    value = metadata.get(key)
    if value is None:
        return kinds.index(TokenKind.UNKNOWN) if TokenKind.UNKNOWN in kinds else None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(kinds):
        fail(key, f"{value!r} is not the id of one of {len(kinds)} tokens")
    return value


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
