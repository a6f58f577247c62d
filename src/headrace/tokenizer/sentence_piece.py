"""SentencePiece: spaces are characters (U+2581), what no token covers is written as bytes.

Two models share this: byte-pair merging by score (`llama` in GGUF files: Llama 2, Mistral 7B,
Gemma, Phi-3) and unigram, the likeliest cut of all (`t5`). Control and byte tokens are never found
in a text: a user who types `<s>` or `<0x0A>` gets these characters.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import tokenizers
from tokenizers import models

from headrace.tokenizer.characters_map import CharactersMap
from headrace.tokenizer.characters_map import key as characters_map_key
from headrace.tokenizer.score_merging import merge_by_score
from headrace.tokenizer.vocabulary import TokenKind, Vocabulary, fail, space_mark

words_kept_max = 1 << 16  # cut words that are remembered
hidden_mark = "\U0010ffff"  # a noncharacter before the texts that unigram must not find
spaces = re.compile(" {2,}")
scheme_key = "headrace.tokenizer.space_prefix_scheme"


@dataclass(frozen=True, slots=True)
class TextRule:
    """How a text is prepared."""

    adds_prefix: bool  # a space before it
    scheme: str  # of a tokenizer.json: "first" and "always" add none before a space, and "first"
    # only at the text's beginning, not after each control token too; empty for GGUF files
    removes_spaces: bool  # at its ends, and all but one of a run
    characters: CharactersMap | None

    def prepare(self, text: str, *, is_first: bool) -> str:
        """The text as the model cuts it; may be empty."""
        if self.characters is not None:
            text = self.characters.normalize(text)
        if self.removes_spaces:
            text = spaces.sub(" ", text).strip(" ")
        if not text:
            return ""
        unneeded = (self.scheme == "first" and not is_first) or (
            self.scheme != "" and text.startswith((" ", space_mark))
        )
        if self.adds_prefix and not unneeded:
            text = " " + text
        return text.replace(" ", space_mark)


class Cutter(Protocol):
    """Cuts a prepared text; None stands for a text that is no token."""

    def cut(self, text: str) -> Iterator[tuple[int | None, str]]:
        """Ids and the texts they stand for, in order."""
        ...


class SentencePieceEncoder:
    """Text to ids; safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, rule: TextRule, cutter: Cutter) -> None:
        self._rule = rule
        self._cutter = cutter
        self._byte_ids = vocabulary.byte_ids
        self._unknown_id = vocabulary.unknown_id

    @property
    def adds_space(self) -> bool:
        """Whether a text gets a space before it."""
        return self._rule.adds_prefix

    def encode(self, text: str, *, is_first: bool) -> list[int]:
        """Ids of a text without control tokens; `is_first` if nothing is before it."""
        ids: list[int] = []
        unknown = False
        for token_id, piece in self._cutter.cut(self._rule.prepare(text, is_first=is_first)):
            if token_id is not None:
                ids.append(token_id)
            elif self._byte_ids:
                ids += [self._byte_ids[byte] for byte in piece.encode()]
            elif self._unknown_id is not None and not unknown:  # a run of them is one token
                ids.append(self._unknown_id)
            unknown = token_id is None
        return ids


class ScoreCutter:
    """Byte-pair merging by score."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        ids = vocabulary.mergeable_ids
        self._ids = ids
        self._scores = {text: vocabulary.scores[token_id] for text, token_id in ids.items()}
        # Where no token reaches over the beginning of a word, words can be cut one by one.
        inside = re.compile(f"[^{space_mark}]{space_mark}")
        crossing = any(inside.search(text) for text in ids)
        self._words = re.compile(r".+" if crossing else f"{space_mark}*[^{space_mark}]*", re.DOTALL)
        self._cut_word = lru_cache(words_kept_max)(self._merge)

    def cut(self, text: str) -> Iterator[tuple[int | None, str]]:
        """Ids and the texts they stand for, in order."""
        for word in self._words.findall(text):
            for piece in self._cut_word(word):
                yield self._ids.get(piece), piece

    def _merge(self, word: str) -> tuple[str, ...]:
        return tuple(merge_by_score(word, self._scores))


class UnigramCutter:
    """The likeliest cut by the tokens' log-probabilities."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.unknown_id is None:
            fail("tokenizer.ggml.unknown_token_id", "is missing")
        self._unknown_id = vocabulary.unknown_id
        found = {TokenKind.NORMAL, TokenKind.USER_DEFINED}
        entries = [
            (text if kind in found else f"{hidden_mark}{text}", float(score))
            for text, kind, score in zip(
                vocabulary.texts, vocabulary.kinds, vocabulary.scores, strict=True
            )
        ]
        self._model = tokenizers.Tokenizer(
            models.Unigram(entries, unk_id=self._unknown_id, byte_fallback=False)
        )

    def cut(self, text: str) -> Iterator[tuple[int | None, str]]:
        """Ids and the texts they stand for, in order."""
        if not text:
            return
        text = text.replace(hidden_mark, "\ufffd")
        encoding = self._model.encode_batch([text], add_special_tokens=False)[0]
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            yield (None if token_id == self._unknown_id else token_id), text[start:end]


def read_sentence_piece(
    metadata: Mapping[str, object], vocabulary: Vocabulary
) -> SentencePieceEncoder:
    """The encoder that a file describes; ModelFileError names what contradicts."""
    unigram = metadata.get("tokenizer.ggml.model") == "t5"
    rule = TextRule(
        adds_prefix=_flag(metadata, "tokenizer.ggml.add_space_prefix", True),
        scheme=str(metadata.get(scheme_key, "")),
        removes_spaces=_flag(metadata, "tokenizer.ggml.remove_extra_whitespaces", False),
        characters=_characters(metadata),
    )
    cutter = UnigramCutter(vocabulary) if unigram else ScoreCutter(vocabulary)
    return SentencePieceEncoder(vocabulary, rule, cutter)


def _flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        fail(key, "is not a boolean")
    return value


def _characters(metadata: Mapping[str, object]) -> CharactersMap | None:
    value = metadata.get(characters_map_key)
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.dtype.itemsize != 1:
        fail(characters_map_key, "is not a list of bytes")
    data = value.tobytes()
    return CharactersMap(data) if data else None
