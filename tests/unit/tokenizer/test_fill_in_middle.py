from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest, ModelFileError
from headrace.tokenizer.tokenizer import Tokenizer

Metadata = dict[str, Any]
MakeTokenizer = Callable[..., Tokenizer]
CONTROL = 3
first_id = 265  # of the tokens that the tests add


@pytest.fixture
def with_tokens(make: MakeTokenizer, metadata: Metadata) -> Callable[..., Tokenizer]:
    """A tokenizer with more control tokens, from `first_id` on."""

    def with_these(*texts: str, **changes: object) -> Tokenizer:
        kinds = [*metadata["tokenizer.ggml.token_type"].tolist(), *[CONTROL] * len(texts)]
        return make(
            {
                "tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"], *texts],
                "tokenizer.ggml.token_type": np.array(kinds, np.int32),
                **{f"tokenizer.ggml.{name}": value for name, value in changes.items()},
            }
        )

    return with_these


@pytest.mark.parametrize(
    "texts",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
        ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
        ("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),  # DeepSeek
    ],
)
def test_a_gap_is_framed_by_the_familys_tokens(
    with_tokens: Callable[..., Tokenizer], texts: tuple[str, str, str]
) -> None:
    tokenizer = with_tokens(*texts, add_bos_token=False)
    prefix, suffix, middle = range(first_id, first_id + 3)
    assert tokenizer.encode_gap("ab", "c") == [prefix, 97, 98, suffix, 99, middle]
    assert tokenizer.encode_gap("", "") == [prefix, suffix, middle]


def test_a_file_may_name_the_tokens_by_id(with_tokens: Callable[..., Tokenizer]) -> None:
    ids = {"fim_pre_token_id": 266, "fim_suf_token_id": 267, "fim_mid_token_id": 265}
    tokenizer = with_tokens("<m>", "<p>", "<s>", **ids, fim_pad_token_id=264)
    assert tokenizer.encode_gap("a", "b") == [261, 266, 97, 267, 98, 265]
    assert tokenizer.fill is not None
    assert tokenizer.fill.end_ids == {264, 265, 266, 267}


def test_codestral_reads_what_is_after_the_gap_first(
    with_tokens: Callable[..., Tokenizer],
) -> None:
    tokenizer = with_tokens("[PREFIX]", "[SUFFIX]")
    assert tokenizer.encode_gap("a", "b") == [261, 266, 98, 265, 97]


def test_control_tokens_in_the_texts_are_plain_characters(
    with_tokens: Callable[..., Tokenizer],
) -> None:
    tokenizer = with_tokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    ids = tokenizer.encode_gap("<fim_middle>", "<fim_middle>")
    assert ids.count(267) == 1
    assert tokenizer.encode_gap([9, 8], "b") == [261, 265, 9, 8, 266, 98, 267]


def test_what_ends_a_gap_is_known(with_tokens: Callable[..., Tokenizer]) -> None:
    texts = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>")
    tokenizer = with_tokens(*texts)
    assert tokenizer.fill is not None
    assert tokenizer.fill.end_ids == set(range(265, 270))


def test_a_model_without_the_tokens_says_so(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="fill in the middle") as caught:
        tokenizer.encode_gap("a", "b")
    assert caught.value.param == "suffix"


def test_an_id_outside_the_vocabulary_is_refused(with_tokens: Callable[..., Tokenizer]) -> None:
    with pytest.raises(ModelFileError, match="fim_pre_token_id"):
        with_tokens(fim_pre_token_id=999)
