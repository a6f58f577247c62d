from pathlib import Path

import pytest
import tokenizers

from headrace.base.errors import ModelFileError
from headrace.tokenizer.encoder_tokenizer import EncoderTokenizer


def test_ids_come_with_the_models_own_tokens_around_them(tmp_path: Path) -> None:
    vocabulary = {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "we": 3, "##ir": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    made.enable_padding(length=12, pad_id=1)
    made.enable_truncation(3)
    made.save(str(tmp_path / "tokenizer.json"))
    assert EncoderTokenizer.of_directory(tmp_path).encode("weir we mill") == [0, 3, 4, 3, 2, 1]


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_tokenizer_that_cannot_be_read_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        EncoderTokenizer.of_directory(tmp_path)
