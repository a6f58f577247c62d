"""Embedding models as directories and as GGUF files made of them: the same words and vectors."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import ModelFileError
from headrace.engine.encoder import Encoder, Pooling
from headrace.sim.progress import SilentProgress
from headrace.tokenizer.encoder_tokenizer import EncoderTokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf
from headrace.weights.huggingface.pooling_file import read_pooling
from headrace.weights.model_file import open_model
from headrace.weights.quantize import quantize_model
from headrace.weights.tensor import TensorType

tokenizers = pytest.importorskip("tokenizers")
torch = pytest.importorskip("torch", reason="PyTorch makes the model: pip install torch==2.13.0")
transformers = pytest.importorskip("transformers", reason="transformers makes the model")

special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
words = [*special, "we", "##ir", "mill", "race", "##s", "cafe", "Weir", "[unused0]", "!", "東"]
words += ["café", "Café", "Cafe"]
texts = ["we mill Weirs", "Café races! 東京", "[SEP] [unused0] weir", "unknown \x00 word", ""]


def make_directory(
    path: Path, *, lowercase: bool = True, strip_accents: bool | None = None
) -> Path:
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    transformers.BertModel(config).save_pretrained(path)
    vocabulary = {word: index for index, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(special)
    made.save(str(path / "tokenizer.json"))
    return path


Convert = Callable[[Path], Path]


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    def convert(directory: Path) -> Path:
        made = tmp_path / "made.gguf"
        with open_model(directory) as file:
            quantize_model(file, made, TensorType.F16, SilentProgress())
        return made

    return convert


@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_files_words_are_the_directorys(
    tmp_path: Path, convert: Convert, lowercase: bool, strip_accents: bool | None
) -> None:
    directory = make_directory(tmp_path / "m", lowercase=lowercase, strip_accents=strip_accents)
    expected = EncoderTokenizer.of_model(directory, {})
    made = convert(directory)
    with open_gguf(made) as file:
        found = EncoderTokenizer.of_model(made, file.metadata)
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        assert tokens[5:7] == ["\u2581we", "ir"]
    for text in texts:
        assert found.encode(text) == expected.encode(text), text


def test_the_files_vectors_are_the_directorys(tmp_path: Path, convert: Convert) -> None:
    directory = make_directory(tmp_path / "m")
    vectors = []
    for path in (directory, convert(directory)):
        with open_model(path) as file:
            tokenizer = EncoderTokenizer.of_model(path, file.metadata)
            encoder = Encoder(file, read_architecture(file), threads=1)
        vectors.append(np.array(encoder.embed([tokenizer.encode(text) for text in texts])))
    np.testing.assert_allclose(vectors[0], vectors[1], atol=2e-3)


def test_llama_cpp_makes_the_same_vectors(tmp_path: Path, convert: Convert) -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    made = convert(make_directory(tmp_path / "m"))
    params = xllamacpp.CommonParams()
    params.model.path, params.embedding, params.warmup = str(made), True, False
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 64, 1, 1
    answer = xllamacpp.Server(params).handle_embeddings({"input": texts[:2], "model": "m"})
    theirs = np.array([entry["embedding"] for entry in answer["data"]])
    with open_gguf(made) as file:
        tokenizer = EncoderTokenizer.from_gguf_metadata(file.metadata)
        encoder = Encoder(file, read_architecture(file), pooling=Pooling.MEAN, threads=1)
    ours = np.array(encoder.embed([tokenizer.encode(text) for text in texts[:2]]))
    cosines = (ours * theirs).sum(axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosines.min() > 0.9999


def pooling(path: Path, **modes: object) -> Path:
    (path / "1_Pooling").mkdir(parents=True)
    (path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    return path


def test_a_directory_says_how_tokens_become_a_text(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == 1
    bge = pooling(tmp_path, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    assert read_pooling(bge) == 2


@pytest.mark.parametrize(("word", "number"), [("mean", 1), ("cls", 2)])
def test_newer_directories_say_it_in_a_word(tmp_path: Path, word: str, number: int) -> None:
    newer = pooling(tmp_path, embedding_dimension=384, pooling_mode=word, include_prompt=True)
    assert read_pooling(newer) == number


def test_the_mean_is_what_most_ask_for(tmp_path: Path) -> None:
    e5 = pooling(tmp_path, word_embedding_dimension=384, pooling_mode_mean_tokens=True)
    assert read_pooling(e5) == 1


def test_another_pooling_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="pooling_mode_lasttoken"):
        read_pooling(pooling(tmp_path / "older", pooling_mode_lasttoken=True))
    with pytest.raises(ModelFileError, match="asks for lasttoken"):
        read_pooling(pooling(tmp_path / "newer", pooling_mode="lasttoken"))


def test_the_pooling_goes_into_the_file(tmp_path: Path, convert: Convert) -> None:
    made = convert(pooling(make_directory(tmp_path / "m"), pooling_mode_cls_token=True))
    with open_gguf(made) as file:
        assert file.metadata["bert.pooling_type"] == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokenizer.ggml.model": "gpt2"}, "tokenizer.ggml.model"),
        ({"tokenizer.ggml.cls_token_id": 99}, "tokenizer.ggml.cls_token_id"),
        ({"tokenizer.ggml.unknown_token_id": "x"}, "tokenizer.ggml.unknown_token_id"),
        ({"tokenizer.ggml.tokens": ["a"] * len(words)}, "tokenizer.ggml.tokens"),
    ],
)
def test_words_that_contradict_are_refused_by_name(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    with open_model(make_directory(tmp_path / "m")) as file:
        metadata = dict(file.metadata) | changes
    with pytest.raises(ModelFileError) as raised:
        EncoderTokenizer.from_gguf_metadata(metadata)
    assert raised.value.fields["field"] == field
