"""Text to token ids and back, exactly as the model was trained: byte-level BPE or SentencePiece.

Control tokens, such as those that begin a turn, are read from text only where the caller says that
the text is the operator's own (`parse_special`). A conversation goes through `encode_chat`, where
the template's control tokens count and those that a user typed are plain characters.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import InvalidRequest
from headrace.tokenizer.byte_level import ByteLevelEncoder
from headrace.tokenizer.chat_template import ChatTemplate
from headrace.tokenizer.content_guard import ContentGuard
from headrace.tokenizer.detokenizer import IncrementalDetokenizer
from headrace.tokenizer.fill_in_middle import FillTokens, read_fill_tokens
from headrace.tokenizer.pre_tokenizers import find_rule
from headrace.tokenizer.sentence_piece import read_sentence_piece
from headrace.tokenizer.special_tokens import SpecialTokens, read_special_tokens
from headrace.tokenizer.vocabulary import (
    TokenKind,
    Vocabulary,
    control_kinds,
    fail,
    literal_kinds,
    read_vocabulary,
    sentence_piece_models,
)

ignore_merges_key = (
    "headrace.tokenizer.ignore_merges"  # what tokenizer.json says beside GGUF's name
)
composes_key = "headrace.tokenizer.composes"
white_space = re.compile(r"\s*")
marker_patterns_max = 4  # nearly always one: the first marker that no text uses


class PieceEncoder(Protocol):
    """What turns text without control tokens into ids."""

    @property
    def adds_space(self) -> bool:
        """Whether a text is encoded with a space before it, which decoding takes away."""
        ...

    def encode(self, text: str, *, is_first: bool) -> list[int]:
        """Its ids; `is_first` if nothing, a control token neither, is before the text."""
        ...


class Tokenizer:
    """One model's tokenizer; safe to share between threads."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: PieceEncoder,
        special: SpecialTokens,
        chat_template: ChatTemplate | None,
        fill: FillTokens | None = None,
    ) -> None:
        self.chat_template = chat_template
        self.fill = fill  # None where the model cannot fill a gap
        self.vocab_size = len(vocabulary)
        self.bos_id = special.bos_id
        self.eos_ids = special.eos_ids
        self._adds_bos = special.adds_bos
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._strip_after = special.strip_after
        self._literals = vocabulary.literal_ids(literal_kinds)
        self._any_literal = _alternatives(self._literals)
        self._user_defined = _alternatives(
            vocabulary.literal_ids(frozenset({TokenKind.USER_DEFINED}))
        )
        self._unmarked_literals = lru_cache(marker_patterns_max)(self._literals_without)
        self._guard = ContentGuard(vocabulary.literal_ids(control_kinds))
        self._bytes: list[bytes | None] = [None] * len(vocabulary)

    @classmethod
    def from_gguf_metadata(
        cls, metadata: Mapping[str, object], clock: Clock | None = None
    ) -> "Tokenizer":
        """Build it from a model file; ModelFileError names what is missing or unsupported.

        `clock` is what templates that write today's date read."""
        model = metadata.get("tokenizer.ggml.model")
        encoder: PieceEncoder
        if model in sentence_piece_models:
            vocabulary = read_vocabulary(metadata)
            encoder, adds_bos = read_sentence_piece(metadata, vocabulary), model == "llama"
        elif model == "gpt2":
            rule = find_rule(str(metadata.get("tokenizer.ggml.pre", "(none)")))
            if isinstance(ignores := metadata.get(ignore_merges_key), bool):
                rule = replace(rule, ignore_merges=ignores)
            vocabulary = read_vocabulary(metadata)
            composes = metadata.get(composes_key) is True
            encoder = ByteLevelEncoder(vocabulary, rule, composes=composes)
            adds_bos = rule.adds_bos
        else:
            if model is None:
                fail("tokenizer.ggml.model", "is missing: the model has no tokenizer")
            known = "gpt2 (byte-level BPE), llama and t5 (SentencePiece)"
            fail("tokenizer.ggml.model", f"{model!r} is not supported; headrace reads {known}")
        special = read_special_tokens(metadata, vocabulary, adds_bos_default=adds_bos)
        source = metadata.get("tokenizer.chat_template")
        if source is not None and not isinstance(source, str):
            fail("tokenizer.chat_template", "is not text")
        template = None
        if source is not None:
            named = {"bos_token": special.bos_id, "eos_token": special.eos_id}
            tokens = {
                name: "" if token_id is None else vocabulary.texts[token_id]
                for name, token_id in named.items()
            }
            template = ChatTemplate(source, tokens, clock or SystemClock())
        return cls(vocabulary, encoder, special, template, read_fill_tokens(metadata, vocabulary))

    def encode(
        self, text: str, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """The text's token ids.

        `add_special` puts the model's beginning-of-text token first where the model wants one.
        `parse_special` reads the texts of control tokens as these tokens: only for the operator's
        own text, as it lets the text end turns and speak as the system."""
        prefix = [self.bos_id] if add_special and self._adds_bos and self.bos_id is not None else []
        pattern = self._any_literal if parse_special else self._user_defined
        return prefix + self._encode_around(text, pattern)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """A conversation as the model's template writes it, with users unable to forge turns.

        `variables` are the template's own; their texts must not spell control tokens.

        Control tokens come from the template alone: their texts inside `messages` and `tools` are
        encoded as the characters they are. InvalidRequest if the messages do not suit the template
        or the model has none, ModelFileError if the template itself is broken."""
        if self.chat_template is None:
            raise InvalidRequest(
                "This model has no chat template; use /v1/completions with a prompt in its own "
                "format."
            )
        guarded = self._guard.guard(messages, tools)
        text = self.chat_template.render(
            guarded.messages,
            add_generation_prompt=add_generation_prompt,
            tools=guarded.tools,
            variables=variables,
        )
        if guarded.marker is None:
            return self.encode(text, parse_special=True)
        return self._encode_around(text, self._unmarked_literals(guarded.marker), guarded.marker)

    def encode_gap(self, before: str | Sequence[int], after: str) -> list[int]:
        """The prompt for what is between two texts; control tokens in them are plain characters.

        InvalidRequest if the model has no tokens for that."""
        if self.fill is None:
            raise InvalidRequest(
                "This model cannot fill in the middle: its tokenizer has no tokens for prefix, "
                "suffix and middle. Leave suffix out, or serve a model of code that has them.",
                param="suffix",
            )
        first = [self.bos_id] if self._adds_bos and self.bos_id is not None else []
        ids = self.encode(before) if isinstance(before, str) else list(before)
        _require_unicode(after)
        # The text after the gap goes on in the middle of a line: no space is put before it.
        rest = self._encoder.encode(after, is_first=False) if after else []
        return first + self.fill.around(ids, rest)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these tokens: control tokens have none, what is not UTF-8 becomes U+FFFD.

        The space that encoding put before a whole text is taken away again; an answer that is
        read piece by piece keeps it, because it may go on in the middle of a line."""
        detokenizer = IncrementalDetokenizer(self)
        text = detokenizer.push(ids) + detokenizer.finish()
        return text.removeprefix(" ") if self._encoder.adds_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """A token's own bytes, a control token's text too; none for an id that does not exist."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        found = self._bytes[token_id]
        if found is None:
            found = self._bytes[token_id] = self._vocabulary.bytes_of(token_id)
        return found

    def text_bytes(self, token_id: int) -> bytes:
        """A token's bytes in an answer; none for control tokens and ids that do not exist."""
        if not 0 <= token_id < self.vocab_size or self._vocabulary.kinds[token_id] in control_kinds:
            return b""
        return self.token_bytes(token_id)

    def _literals_without(self, marker: str) -> re.Pattern[str]:
        """Texts of literal tokens without a mark: inside, or twice after a single character."""
        return _alternatives(self._literals, after_single=f"(?!{marker}{marker})")

    def _encode_around(
        self, text: str, literals: re.Pattern[str], marker: str | None = None
    ) -> list[int]:
        """Ids of literal tokens where the pattern finds them, and of what is between them."""
        _require_unicode(text)
        ids: list[int] = []
        start = 0
        for match in literals.finditer(text):
            ids += self._encode_plain(text[start : match.start()], marker, is_first=not start)
            ids.append(self._literals[match[0]])
            start = match.end()
            if match[0] in self._strip_after and (spaces := white_space.match(text, start)):
                start = spaces.end()
        return ids + self._encode_plain(text[start:], marker, is_first=not start)

    def _encode_plain(self, text: str, marker: str | None, *, is_first: bool) -> list[int]:
        if not text:
            return []
        if marker is None or marker not in text:
            return self._encoder.encode(text, is_first=is_first)
        # Only what marks hid is in this text; tokens that anybody may write count nevertheless.
        text = text.replace(marker, "")
        ids: list[int] = []
        start = 0
        for match in self._user_defined.finditer(text):
            before = text[start : match.start()]
            ids += self._encode_plain(before, None, is_first=is_first and not start)
            ids.append(self._literals[match[0]])
            start = match.end()
        return ids + self._encode_plain(text[start:], None, is_first=is_first and not start)


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("The text has half of a surrogate pair; send valid Unicode.") from None


def _alternatives(texts: Iterable[str], *, after_single: str = "") -> re.Pattern[str]:
    """A pattern for any of the texts, the longest first; it never matches if there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    patterns = [
        re.escape(text) + (after_single if len(text) == 1 else "") for text in longest_first
    ]
    return re.compile("|".join(patterns) or r"(?!)")
