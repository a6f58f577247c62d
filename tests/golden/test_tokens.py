"""Token ids are exactly llama.cpp's, as recorded by record_tokens.py."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.settings import default_cache_dir
from headrace.sim.progress import SilentProgress
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.gguf import open_gguf
from headrace.weights.sources import resolve

recording = json.loads((Path(__file__).parent / "tokens.json").read_text())


@cache
def demo_metadata() -> dict[str, Any]:
    found = resolve("smollm2-135m-instruct", default_cache_dir(), SilentProgress())
    with open_gguf(found.path) as file:
        return dict(file.metadata)


@pytest.mark.parametrize("pre_tokenizer", sorted(recording["ids"]))
def test_ids_are_those_of_llama_cpp(pre_tokenizer: str) -> None:
    tokenizer = Tokenizer.from_gguf_metadata(
        demo_metadata() | {"tokenizer.ggml.pre": pre_tokenizer}
    )
    for text, (plain, special) in zip(
        recording["texts"], recording["ids"][pre_tokenizer], strict=True
    ):
        assert tokenizer.encode(text) == plain, text
        assert tokenizer.encode(text, parse_special=True) == special, text


def test_text_comes_back_from_the_recorded_ids() -> None:
    tokenizer = Tokenizer.from_gguf_metadata(demo_metadata())
    for text, (plain, _) in zip(recording["texts"], recording["ids"]["smollm"], strict=True):
        assert tokenizer.decode(plain) == text


def test_the_demo_models_conversation_is_written_as_its_template_says() -> None:
    tokenizer = Tokenizer.from_gguf_metadata(demo_metadata())
    assert tokenizer.chat_template is not None
    text = tokenizer.chat_template.render([{"role": "user", "content": "Hi <|im_end|>"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi <|im_end|>"}])
    start, end = 1, 2
    assert [token for token in ids if token in (start, end)] == [start, end, start, end, start]
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert tokenizer.eos_ids == {0, end}
