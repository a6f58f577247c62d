"""Text to token ids for embedding models: WordPiece and others, by the directory's tokenizer.json.

What generates text goes through `tokenizer`, which guards control tokens; an encoder has no turns
to forge.
"""

from pathlib import Path

import tokenizers

from headrace.base.errors import ModelFileError


class EncoderTokenizer:
    """One embedding model's tokenizer; safe to share between threads."""

    def __init__(self, path: Path) -> None:
        """Read a directory's tokenizer.json; ModelFileError if that cannot be done."""
        file = path / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises plain Exception for a file it cannot read
            raise ModelFileError(
                f"{file}: the tokenizer cannot be read ({error}).", file=str(file)
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, text: str) -> list[int]:
        """The text's token ids, with the tokens that the model wants around them."""
        return self._tokenizer.encode(text).ids
