"""What a model is and can do, by its header."""

import json
import os
from pathlib import Path

import pytest

from headrace.sim.model_on_disk import write_model_file
from headrace.spec.models import FileHeader
from headrace.weights.file_header import capabilities_of, header_at, local_header
from headrace.weights.gguf_writer import write_gguf


def encoder(pooling: int) -> dict[str, object]:
    return {
        "general.architecture": "bert",
        "bert.context_length": 512,
        "bert.embedding_length": 384,
        "bert.attention.causal": False,
        "bert.pooling_type": pooling,
    }


def test_a_model_that_the_engine_knows_has_its_family_and_context(tmp_path: Path) -> None:
    header = header_at(write_model_file(tmp_path / "m.gguf"))
    assert (header.format, header.family) == ("gguf", "llama")
    assert header.context_length is not None
    assert header.parameters is not None
    assert "completions" in header.capabilities
    assert (header.pooling, header.embedding_size) == ("", None)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("", ["completions"]),
        ("{{ messages }}", ["completions", "chat"]),
        ("{% if tools %}{{ messages }}", ["completions", "chat", "tools"]),
        ("{{ messages }}<think>", ["completions", "chat", "reasoning"]),
    ],
)
def test_a_chat_template_tells_what_a_model_was_trained_for(
    template: str, expected: list[str]
) -> None:
    assert list(capabilities_of(template)) == expected
    assert capabilities_of(template, sees=True)[-1] == "vision"


@pytest.mark.parametrize(
    ("number", "word", "capability"),
    [(1, "mean", "embeddings"), (2, "first", "embeddings"), (4, "rank", "rerank")],
)
def test_an_encoder_says_how_it_makes_a_vector_of_a_text(
    tmp_path: Path, number: int, word: str, capability: str
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, encoder(number), [])
    header = header_at(path)
    assert header.capabilities == (capability,)
    assert (header.pooling, header.embedding_size, header.context_length) == (word, 384, 512)


def test_a_directory_of_a_family_that_only_others_run_says_what_its_config_says(
    tmp_path: Path,
) -> None:
    config = {
        "architectures": ["UnheardForConditionalGeneration"],
        "model_type": "unheard_vl",
        "text_config": {"max_position_embeddings": 131_072},
        "vision_config": {"depth": 32},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "chat_template.jinja").write_text("{{ tools }}{{ messages }}")
    assert header_at(tmp_path) == FileHeader(
        format="safetensors",
        family="unheard_vl",
        context_length=131_072,
        capabilities=("completions", "chat", "tools", "vision"),
    )
    config["architectures"] = ["UnheardModel"]  # of which nobody knows what it makes
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert header_at(tmp_path).capabilities == ()


@pytest.mark.parametrize("value", [True, -1, 0, "many", None])
def test_a_context_length_that_is_no_length_is_not_believed(tmp_path: Path, value: object) -> None:
    config = {"model_type": "unheard", "max_position_embeddings": value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert header_at(tmp_path).context_length is None


def test_only_a_path_of_this_machine_is_read_before_it_is_fetched(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "m.gguf")
    assert local_header(str(path)) == header_at(path)
    os.mkfifo(tmp_path / "pipe")
    assert local_header(str(tmp_path / "pipe")) is None
    for source in ("api:gpt-5", "hf://owner/model", "all-minilm", str(tmp_path / "none.gguf"), ""):
        assert local_header(source) is None
