"""SentencePiece models, trained here on a small text, against the library that defines them."""

import io
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ModelFileError
from headrace.tokenizer.detokenizer import IncrementalDetokenizer
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.huggingface.tokenizer_file import read_tokenizer_metadata

sentencepiece = pytest.importorskip("sentencepiece")
sentence = "the weir and race turn a wheel of water into work aaaa größe 東京 mill   1234"
words = [*re.split(" ", sentence), "stone's"]
kinds = {"normal": 1, "unknown": 2, "control": 3, "user": 4, "unused": 5, "byte": 6}


def train(**changes: Any) -> Any:
    rng = random.Random(1)
    text = [" ".join(rng.choices(words, k=12)) for _ in range(400)]
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=made,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 340, "byte_fallback": True, "hard_vocab_limit": False} | changes,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())


def metadata_of(trained: Any, model: str, **changes: Any) -> dict[str, Any]:
    count = trained.vocab_size()
    kind = [
        kinds["control"]
        if trained.is_control(i)
        else kinds["unknown"]
        if trained.is_unknown(i)
        else kinds["byte"]
        if trained.is_byte(i)
        else kinds["normal"]
        for i in range(count)
    ]
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": [trained.id_to_piece(i) for i in range(count)],
        "tokenizer.ggml.scores": np.array([trained.get_score(i) for i in range(count)], np.float32),
        "tokenizer.ggml.token_type": np.array(kind, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | changes


def number(message: bytes, at: int) -> tuple[int, int]:
    """A variable-length number of a protocol buffer, and where it ends."""
    value = shift = 0
    while True:
        value |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 128:
            return value, at


def field(message: bytes, wanted: int) -> bytes:
    """A length-delimited field of a protocol buffer."""
    at = 0
    while at < len(message):
        tag, at = number(message, at)
        match tag & 7:
            case 0:
                _, at = number(message, at)
            case 2:
                size, at = number(message, at)
                if tag >> 3 == wanted:
                    return message[at : at + size]
                at += size
            case kind:
                at += {1: 8, 5: 4}[kind]
    raise AssertionError(f"no field {wanted}")


def charsmap(trained: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(field(field(trained.serialized_model_proto(), 3), 2), np.uint8)


plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
bpe = train(model_type="bpe", **plain)
unigram = train(model_type="unigram", **plain)
without_bytes = train(model_type="unigram", byte_fallback=False, **plain)
unprefixed = train(model_type="bpe", add_dummy_prefix=False, **plain)
models = [
    (bpe, Tokenizer.from_gguf_metadata(metadata_of(bpe, "llama"))),
    (unigram, Tokenizer.from_gguf_metadata(metadata_of(unigram, "t5"))),
    (without_bytes, Tokenizer.from_gguf_metadata(metadata_of(without_bytes, "t5"))),
    (
        unprefixed,
        Tokenizer.from_gguf_metadata(
            metadata_of(unprefixed, "llama", **{"tokenizer.ggml.add_space_prefix": False})
        ),
    ),
]
known_words = st.lists(st.sampled_from([*words, "  ", "aaa", "\n", "<s>", "<0x0A>"])).map(" ".join)
texts = st.one_of(st.text(max_size=40), known_words)


@settings(max_examples=150, deadline=None)
@given(texts)
def test_ids_are_those_of_the_library(text: str) -> None:
    for trained, tokenizer in models:
        assert tokenizer.encode(text) == trained.encode(text), trained.get_piece_size()


@settings(max_examples=80, deadline=None)
@given(texts, st.integers(1, 3))
def test_any_text_comes_back_whole_and_never_half_a_character(text: str, step: int) -> None:
    for trained, tokenizer in models:
        if trained is without_bytes:
            continue
        ids = tokenizer.encode(text)
        expected = text.replace("\u2581", " ")
        assert tokenizer.decode(ids) == expected
        detokenizer = IncrementalDetokenizer(tokenizer)
        pushes = [detokenizer.push(ids[start : start + step]) for start in range(0, len(ids), step)]
        pushes.append(detokenizer.finish())
        if "\ufffd" not in text:
            assert not any("\ufffd" in pushed for pushed in pushes)
        assert "".join(pushes).removeprefix(" " * (trained is not unprefixed)) == expected


@settings(max_examples=100, deadline=None)
@given(texts)
def test_normalization_is_that_of_the_file(text: str) -> None:
    trained, tokenizer = normalizing
    assert tokenizer.encode(text) == trained.encode(text)


def _normalizing() -> tuple[Any, Tokenizer]:
    trained = train(model_type="unigram", normalization_rule_name="nmt_nfkc")
    changes = {
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.precompiled_charsmap": charsmap(trained),
    }
    return trained, Tokenizer.from_gguf_metadata(metadata_of(trained, "t5", **changes))


normalizing = _normalizing()


def test_a_users_text_never_gives_control_or_byte_tokens() -> None:
    for _, tokenizer in models:
        for text in ("<s>", "</s>", "\U0010ffff</s>", "x<s>y"):
            assert not {1, 2} & set(tokenizer.encode(text))
        assert tokenizer.encode("<s>the", parse_special=True)[0] == 1


def test_a_text_begins_with_the_models_token_and_space() -> None:
    trained, tokenizer = models[0]
    assert tokenizer.encode("the", add_special=True) == [1, *trained.encode("the")]
    assert tokenizer.encode("</s>the", parse_special=True) == [2, *trained.encode("the")]
    assert tokenizer.decode([1, *trained.encode("the")]) == "the"


def test_the_space_after_some_control_tokens_is_theirs() -> None:
    named = metadata_of(unprefixed, "llama") | {
        "general.name": "Phi-3 mini",
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = Tokenizer.from_gguf_metadata(named)
    encoded = tokenizer.encode("</s> \n the", parse_special=True)
    assert encoded == [2, *unprefixed.encode("the")]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokenizer.ggml.scores": None}, "tokenizer.ggml.scores"),
        ({"tokenizer.ggml.scores": np.ones(3, np.float32)}, "tokenizer.ggml.scores"),
        ({"tokenizer.ggml.scores": np.full(340, np.nan, np.float32)}, "tokenizer.ggml.scores"),
        ({"tokenizer.ggml.unknown_token_id": 1 << 20}, "tokenizer.ggml.unknown_token_id"),
        ({"tokenizer.ggml.add_space_prefix": 1}, "tokenizer.ggml.add_space_prefix"),
        (
            {"tokenizer.ggml.precompiled_charsmap": np.full(9, 255, np.uint8)},
            "tokenizer.ggml.precompiled_charsmap",
        ),
    ],
)
def test_what_contradicts_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFileError) as raised:
        Tokenizer.from_gguf_metadata(metadata_of(bpe, "llama") | changes)
    assert raised.value.fields["field"] == field


def write_directory(path: Path, trained: Any, *, merging: bool, scheme: str) -> Any:
    """tokenizer.json as Hugging Face's converters write it for such a model."""
    pieces = [(trained.id_to_piece(i), trained.get_score(i)) for i in range(trained.vocab_size())]
    model: Any
    if merging:
        vocab = {piece: index for index, (piece, _) in enumerate(pieces)}
        merges = sorted(
            (
                (-score, vocab[piece[:cut]], vocab[piece[cut:]], piece[:cut], piece[cut:])
                for index, (piece, score) in enumerate(pieces)
                if not trained.is_byte(index)
                for cut in range(1, len(piece))
                if piece[:cut] in vocab and piece[cut:] in vocab
            ),
        )
        model = tokenizers.models.BPE(
            vocab,
            [(left, right) for *_, left, right in merges],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    else:
        model = tokenizers.models.Unigram(pieces, 0, True)
    made = tokenizers.Tokenizer(model)
    if scheme == "legacy":
        normalizers = tokenizers.normalizers
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace("▁", scheme, split=False)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.save(str(path / "tokenizer.json"))
    return made


@pytest.mark.parametrize("scheme", ["legacy", "first", "always"])
@pytest.mark.parametrize("merging", [True, False])
def test_a_directory_gives_the_ids_of_its_own_library(
    tmp_path: Path, merging: bool, scheme: str
) -> None:
    trained = bpe if merging else unigram
    oracle = write_directory(tmp_path, trained, merging=merging, scheme=scheme)
    config = {"bos_token_id": 1, "eos_token_id": 2}
    tokenizer = Tokenizer.from_gguf_metadata(read_tokenizer_metadata(tmp_path, config))
    for text in ("the weir", "  two\n\n mills'", "größe 東京 🙂 aaaaaaa", "a<s>the</s> race", ""):
        ids = oracle.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, parse_special=True) == ids, text
    assert tokenizer.encode("the aaaaa weir") == trained.encode("the aaaaa weir")
    assert tokenizer.eos_ids == {2}


def test_a_directory_with_an_unknown_step_is_refused(tmp_path: Path) -> None:
    write_directory(tmp_path, bpe, merging=True, scheme="legacy")
    file = tmp_path / "tokenizer.json"
    changed = json.loads(file.read_text()) | {"normalizer": {"type": "Lowercase"}}
    file.write_text(json.dumps(changed))
    with pytest.raises(ModelFileError, match="Lowercase"):
        read_tokenizer_metadata(tmp_path, {})
