"""Every file that fuzzing found new code with (tests/fuzz): a model, or a refusal that says why."""

from contextlib import suppress
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf
from headrace.weights.layout import runner_tensors
from headrace.weights.soundness import check_weights

corpus = sorted((Path(__file__).parents[2] / "corpus" / "gguf").iterdir())
readable = ("seed-llama-bpe", "seed-llama-yarn", "seed-qwen2-spm")


def take(path: Path) -> None:
    """As far as a model can be taken without computing with it."""
    with open_gguf(path) as file:
        check_weights(file.tensors)
        spec = read_architecture(file)
        runner_tensors(spec, file.tensors)
        if "tokenizer.ggml.model" in file.metadata:
            Tokenizer.from_gguf_metadata(file.metadata).encode("a text, 12 <s>", add_special=True)


@pytest.mark.parametrize("path", corpus, ids=lambda path: path.name)
def test_it_is_read_or_refused_by_one_kind_of_error(path: Path) -> None:
    with suppress(HeadraceError):
        take(path)


@pytest.mark.parametrize("name", readable)
def test_the_seeds_are_read(name: str) -> None:
    take(corpus[0].with_name(name))
