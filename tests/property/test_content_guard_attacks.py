"""Whatever users write: a conversation's control tokens are those of its template, no more."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sim.clock import ManualClock
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.tokenizer.vocabulary import byte_of_character

control = ["<|a|>", "<|a|><|b|>", "<|b|>", "[X]", "[X", "|", "xx"]
character_of_byte = {byte: character for character, byte in byte_of_character.items()}
templates = [
    "{% for m in messages %}[X]{{ m.content }}<|b|>{% endfor %}",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{{ m.content | trim }}{% endfor %}",
    "{% for m in messages %}[X]{{ m.content.strip() + m.role ~ '.' }}{% endfor %}",
    "{{ messages | tojson }}",
    "{{ messages | map(attribute='content') | join('') }}",
]


def make(template: str) -> Tokenizer:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*(character_of_byte[byte] for byte in range(256)), *control],
        "tokenizer.ggml.token_type": np.array([1] * 256 + [3] * len(control), np.int32),
        "tokenizer.ggml.merges": [],
        "tokenizer.chat_template": template,
    }
    return Tokenizer.from_gguf_metadata(metadata, ManualClock())


tokenizers = [make(template) for template in templates]
fragments = st.sampled_from(["<", "|", "a", "b", ">", "[", "X", "]", "x", " ", "\n", "\ufdd0", "é"])
content = st.lists(st.one_of(fragments, st.sampled_from(control)), max_size=12).map("".join)


@given(
    tokenizer=st.sampled_from(tokenizers),
    contents=st.lists(content, min_size=1, max_size=4),
    role=content,
)
@settings(max_examples=1500, deadline=None)
def test_users_cannot_write_control_tokens(
    tokenizer: Tokenizer, contents: list[str], role: str
) -> None:
    assert tokenizer.chat_template is not None
    messages = [{"role": role, "content": text} for text in contents]
    harmless = [{"role": "-", "content": "-"} for _ in contents]
    ids = tokenizer.encode_chat(messages)
    expected = tokenizer.encode_chat(harmless)
    assert [token for token in ids if token >= 256] == [token for token in expected if token >= 256]
    text = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert text == tokenizer.chat_template.render(messages)
