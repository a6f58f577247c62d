"""Byte-level BPE: bytes have printable stand-ins, words are cut by rule and merged by rank."""

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from headrace.tokenizer.pre_tokenizers import PreTokenizerRule
from headrace.tokenizer.vocabulary import Vocabulary


class ByteLevelEncoder:
    """Text to ids; safe to share between threads."""

    def __init__(
        self, vocabulary: Vocabulary, rule: PreTokenizerRule, *, composes: bool = False
    ) -> None:
        """`composes`: letters and their marks become one character first (NFC), as in Qwen."""
        model = models.BPE(
            vocab=vocabulary.mergeable_ids,
            merges=list(vocabulary.merges),
            ignore_merges=rule.ignore_merges,
        )
        self._encoder = tokenizers.Tokenizer(model)
        if composes:
            self._encoder.normalizer = normalizers.NFC()
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._encoder.pre_tokenizer = pre_tokenizers.Sequence([*steps, to_bytes])

    @property
    def adds_space(self) -> bool:
        """Never: words carry their spaces."""
        return False

    def encode(self, text: str, *, is_first: bool) -> list[int]:
        """Ids of a text without control tokens; where it stands changes nothing."""
        del is_first
        # The batch call, unlike `encode`, runs without the GIL.
        return self._encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
