"""The encoder on a small random BERT, against `transformers`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import ConfigurationError, ContextLengthExceeded, InvalidRequest
from headrace.engine.encoder import Encoder, Pooling
from headrace.sim.tiny_model import tiny_spec
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.model_file import ModelFile, open_model

torch = pytest.importorskip("torch", reason="PyTorch is the oracle: pip install torch==2.13.0")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
torch.set_num_threads(1)
texts = [[1, 5, 9, 2], list(range(3, 60)), [7], *([i, i + 1] for i in range(3, 80))]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("bert")
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=96,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    model = transformers.BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(where)
    return where


@pytest.fixture(scope="module")
def oracle(path: Path) -> Any:
    return transformers.BertModel.from_pretrained(path).eval()


@pytest.fixture
def file(path: Path) -> Iterator[ModelFile]:
    with open_model(path) as opened:
        yield opened


@pytest.mark.parametrize("pooling", list(Pooling))
def test_vectors_are_those_of_transformers(file: ModelFile, oracle: Any, pooling: Pooling) -> None:
    encoder = Encoder(file, read_architecture(file), pooling=pooling, threads=2)
    found = np.array(encoder.embed(texts), np.float32)
    for text, vector in zip(texts, found, strict=True):
        with torch.no_grad():
            rows = oracle(torch.tensor([text])).last_hidden_state[0].numpy()
        expected = rows[0] if pooling is Pooling.FIRST else rows.mean(axis=0)
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-3)


def test_a_vector_does_not_depend_on_the_other_texts(file: ModelFile) -> None:
    encoder = Encoder(file, read_architecture(file), threads=2)
    assert encoder.embed(texts)[1] == encoder.embed([texts[1]])[0]
    assert encoder.embed([]) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [([], InvalidRequest), ([96], InvalidRequest), ([1] * 65, ContextLengthExceeded)],
)
def test_a_text_that_cannot_be_embedded_is_refused(
    file: ModelFile, text: list[int], error: type[Exception]
) -> None:
    encoder = Encoder(file, read_architecture(file), threads=1)
    with pytest.raises(error, match="input 1"):
        encoder.embed([[1], text])


def test_a_model_that_generates_is_refused(file: ModelFile) -> None:
    with pytest.raises(ConfigurationError, match="generates text"):
        Encoder(file, tiny_spec)
