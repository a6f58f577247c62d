"""A tiny byte-level vocabulary, made by hand, so that every id in a test can be seen."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.sim.clock import ManualClock
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.tokenizer.vocabulary import byte_of_character

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
template = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

Metadata = dict[str, Any]
MakeTokenizer = Callable[..., Tokenizer]


@pytest.fixture
def metadata() -> Metadata:
    """Bytes 0..255 (in id order: by byte), then merges, then special tokens."""
    character_of_byte = {byte: character for character, byte in byte_of_character.items()}
    tokens = [character_of_byte[byte] for byte in range(256)]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
    tokens += ["he", "ll", "hell", "hello", "Ġhello"]  # 256..260
    tokens += ["<|start|>", "<|end|>", "<|eos|>", "<think>"]  # 261..264
    kinds = [NORMAL] * 261 + [CONTROL] * 3 + [USER_DEFINED]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 261,
        "tokenizer.ggml.eos_token_id": 263,
        "tokenizer.ggml.eot_token_id": 262,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": template,
    }


@pytest.fixture
def make(metadata: Metadata) -> MakeTokenizer:
    """A tokenizer with changed metadata; None takes a key away."""

    def make_tokenizer(changes: Metadata | None = None) -> Tokenizer:
        changed = metadata | (changes or {})
        return Tokenizer.from_gguf_metadata(
            {key: value for key, value in changed.items() if value is not None}, ManualClock()
        )

    return make_tokenizer


@pytest.fixture
def tokenizer(make: MakeTokenizer) -> Tokenizer:
    return make()
