"""Text to token ids for embedding models, by a tokenizer.json or by a GGUF file's words.

What generates text goes through `tokenizer`, which guards control tokens; an encoder has no turns
to forge. A GGUF file of a BERT-shaped encoder has WordPiece's tokens with a mark where words begin.
"""

from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from headrace.base.errors import ModelFileError
from headrace.tokenizer.vocabulary import TokenKind, Vocabulary, fail, read_word_pieces, space_mark

unknown_key = "tokenizer.ggml.unknown_token_id"
begin_key = "tokenizer.ggml.cls_token_id"
end_keys = ("tokenizer.ggml.seperator_token_id", "tokenizer.ggml.eos_token_id")
# llama.cpp's, and ours of files that were made before there was one.
lowercase_keys = ("tokenizer.ggml.normalizer.lowercase", "headrace.tokenizer.lowercase")
strip_accents_key = "tokenizer.ggml.normalizer.strip_accents"
continuing = "##"
word_characters_max = 100  # longer words are unknown, as in BERT


class EncoderTokenizer:
    """One embedding model's tokenizer; safe to share between threads."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    @classmethod
    def of_model(cls, path: Path, metadata: Mapping[str, object]) -> "EncoderTokenizer":
        """The tokenizer of a model; ModelFileError if it has none that can be read."""
        return cls.of_directory(path) if path.is_dir() else cls.from_gguf_metadata(metadata)

    @classmethod
    def of_directory(cls, path: Path) -> "EncoderTokenizer":
        """Read a directory's tokenizer.json; ModelFileError if that cannot be done."""
        file = path / "tokenizer.json"
        try:
            return cls(tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8")))
        except Exception as error:  # the library raises plain Exception for a file it cannot read
            raise ModelFileError(
                f"{file}: the tokenizer cannot be read ({error}).", file=str(file)
            ) from error

    @classmethod
    def from_gguf_metadata(cls, metadata: Mapping[str, object]) -> "EncoderTokenizer":
        """Build it from a GGUF file's words; ModelFileError names what is missing."""
        model = metadata.get("tokenizer.ggml.model")
        if model != "bert":
            fail("tokenizer.ggml.model", f"{model!r} is not supported in an encoder; bert is")
        vocabulary = read_word_pieces(metadata)
        begin = _token_id(metadata, vocabulary, begin_key, "tokenizer.ggml.bos_token_id")
        end = _token_id(metadata, vocabulary, *end_keys)
        unknown = _token_id(metadata, vocabulary, unknown_key)
        texts = [_word_piece(vocabulary, token_id) for token_id in range(len(vocabulary))]
        pieces = {text: token_id for token_id, text in enumerate(texts)}
        if len(pieces) != len(texts):
            fail("tokenizer.ggml.tokens", "two of them are the same")
        made = tokenizers.Tokenizer(
            models.WordPiece(
                vocab=pieces,
                unk_token=texts[unknown],
                max_input_chars_per_word=word_characters_max,
            )
        )
        made.normalizer = _normalizer(metadata)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = [
            text
            for token_id, text in enumerate(texts)
            if vocabulary.kind(token_id) == TokenKind.CONTROL
        ]
        made.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in special])
        made.post_processor = processors.BertProcessing((texts[end], end), (texts[begin], begin))
        return cls(made)

    def encode(self, text: str) -> list[int]:
        """The text's token ids, with the tokens that the model wants around them."""
        return self._tokenizer.encode(text).ids


def _normalizer(metadata: Mapping[str, object]) -> normalizers.Normalizer:
    """BERT's; a file that says nothing of accents keeps them where it keeps capital letters."""
    small = _flag(metadata, *lowercase_keys, default=True)
    stripped = _flag(metadata, strip_accents_key, default=small)
    return normalizers.BertNormalizer(lowercase=small, strip_accents=stripped)


def _flag(metadata: Mapping[str, object], *keys: str, default: bool) -> bool:
    key = next((key for key in keys if key in metadata), None)
    if key is None:
        return default
    value = metadata[key]
    if not isinstance(value, bool):
        fail(key, f"{value!r} is neither true nor false")
    return value


def _token_id(metadata: Mapping[str, object], vocabulary: Vocabulary, *keys: str) -> int:
    value = next((metadata[key] for key in keys if key in metadata), None)
    if not isinstance(value, int) or not 0 <= value < len(vocabulary):
        fail(keys[0], "is missing" if value is None else f"{value!r} is not a token's id")
    return value


def _word_piece(vocabulary: Vocabulary, token_id: int) -> str:
    """A token as WordPiece writes it."""
    text = vocabulary.texts[token_id]
    if vocabulary.kind(token_id) in (TokenKind.CONTROL, TokenKind.UNKNOWN):
        return text
    if text.startswith(space_mark):
        return text.removeprefix(space_mark)
    return continuing + text
