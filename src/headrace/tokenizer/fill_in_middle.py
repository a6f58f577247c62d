"""Filling in the middle: the control tokens around what is before and after a gap.

    prefix token, text before, suffix token, text after, middle token      Qwen, StarCoder,
                                                                           CodeLlama, DeepSeek
    suffix token, text after, prefix token, text before                    Codestral

A file names the tokens by id, or they are control tokens with the texts that families use.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.tokenizer.vocabulary import TokenKind, Vocabulary, named_id

# Keys of the ids, the newer name first, and the texts of each token.
prefix_keys = ("fim_pre_token_id", "prefix_token_id")
suffix_keys = ("fim_suf_token_id", "suffix_token_id")
middle_keys = ("fim_mid_token_id", "middle_token_id")
prefix_texts = (
    "<|fim_prefix|>",
    "<fim_prefix>",
    "<fim-prefix>",
    "<\uff5cfim▁begin\uff5c>",
    "▁<PRE>",
    "<PRE>",
    "<|code_prefix|>",
    "[PREFIX]",
)
suffix_texts = (
    "<|fim_suffix|>",
    "<fim_suffix>",
    "<fim-suffix>",
    "<\uff5cfim▁hole\uff5c>",
    "▁<SUF>",
    "<SUF>",
    "<|code_suffix|>",
    "[SUFFIX]",
)
middle_texts = (
    "<|fim_middle|>",
    "<fim_middle>",
    "<fim-middle>",
    "<\uff5cfim▁end\uff5c>",
    "▁<MID>",
    "<MID>",
    "<|code_middle|>",
)
# Where a model writes one of these, the gap is filled.
end_keys = ("fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id")
end_texts = (
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "<|file_separator|>",
    "<|file_sep|>",
    "<file_sep>",
    "<|repo_name|>",
    "<repo_name>",
    "▁<EOT>",
)
named_kinds = frozenset({TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN})


@dataclass(frozen=True, slots=True)
class FillTokens:
    """How one model is asked to fill a gap."""

    prefix_id: int
    suffix_id: int
    middle_id: int | None  # None: the text after the gap comes first
    end_ids: frozenset[int]  # that end what fills it, besides those that end any answer

    def around(self, before: list[int], after: list[int]) -> list[int]:
        """The tokens that ask for what is between two texts."""
        if self.middle_id is None:
            return [self.suffix_id, *after, self.prefix_id, *before]
        return [self.prefix_id, *before, self.suffix_id, *after, self.middle_id]


def read_fill_tokens(metadata: Mapping[str, object], vocabulary: Vocabulary) -> FillTokens | None:
    """Take them out of a file's metadata; None if the model has none."""
    named = vocabulary.literal_ids(named_kinds)
    prefix_id = _find(metadata, prefix_keys, prefix_texts, vocabulary, named)
    suffix_id = _find(metadata, suffix_keys, suffix_texts, vocabulary, named)
    middle_id = _find(metadata, middle_keys, middle_texts, vocabulary, named)
    if prefix_id is None or suffix_id is None:
        return None
    if middle_id is None and named.get("[SUFFIX]") != suffix_id:
        return None
    ends = {named_id(metadata, key, vocabulary) for key in end_keys}
    ends |= {named[text] for text in end_texts if text in named}
    others = frozenset({prefix_id, suffix_id, middle_id})
    end_ids = frozenset(token_id for token_id in ends | others if token_id is not None)
    return FillTokens(prefix_id, suffix_id, middle_id, end_ids)


def _find(
    metadata: Mapping[str, object],
    keys: tuple[str, ...],
    texts: tuple[str, ...],
    vocabulary: Vocabulary,
    named: Mapping[str, int],
) -> int | None:
    for key in keys:
        token_id = named_id(metadata, key, vocabulary)
        if token_id is not None:
            return token_id
    return next((named[text] for text in texts if text in named), None)
