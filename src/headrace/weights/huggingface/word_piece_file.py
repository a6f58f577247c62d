"""A WordPiece tokenizer.json under the keys that GGUF files of BERT-shaped encoders have.

GGUF marks where words begin instead of where they go on: "##ing" becomes "ing", and "weir" becomes
"\\u2581weir". Letters are made small and lose their accents unless llama.cpp's keys for BERT's
normalizer say otherwise (its pull requests 23899 and 24371).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np

from headrace.base.errors import ModelFileError
from headrace.weights.huggingface.tokenizer_file import read_json_object

tokenizer_name = "tokenizer.json"
word_mark = "\u2581"
continuing = "##"
normal, control = 1, 3  # GGUF's kinds of token
lowercase_key = "tokenizer.ggml.normalizer.lowercase"
strip_accents_key = "tokenizer.ggml.normalizer.strip_accents"
special_keys = {  # by what most vocabularies call them
    "[CLS]": ("cls_token_id", "bos_token_id"),
    "[SEP]": ("seperator_token_id", "eos_token_id"),  # so spelt in GGUF
    "[UNK]": ("unknown_token_id",),
    "[PAD]": ("padding_token_id",),
    "[MASK]": ("mask_token_id",),
}


def word_piece_keys(path: Path) -> dict[str, object]:
    """The directory's tokenizer under GGUF's keys; empty if it has none, or another kind."""
    file = read_json_object(path / tokenizer_name)
    model = file.get("model")
    if not isinstance(model, dict) or model.get("type") != "WordPiece":
        return {}
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not _are_numbers(list(vocab.values())):
        _fail(path, "vocab", "is no list of tokens by number")
    added = file.get("added_tokens")
    listed = (
        [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    )
    special = [token.get("content") for token in listed if token.get("special") is True]
    texts = sorted(vocab, key=vocab.__getitem__)
    keys: dict[str, object] = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [_in_gguf(text, text in special) for text in texts],
        "tokenizer.ggml.token_type": np.array(
            [control if text in special else normal for text in texts], np.int32
        ),
        "tokenizer.ggml.token_type_count": 2,
    }
    for text, names in special_keys.items():
        if text in vocab:
            keys |= {f"tokenizer.ggml.{name}": vocab[text] for name in names}
    small, stripped = (_any_step(file.get("normalizer"), does) for does in (_makes_small, _strips))
    if not (small and stripped):
        keys |= {lowercase_key: small, strip_accents_key: stripped}
    return keys


def _are_numbers(values: list[object]) -> bool:
    """Whether they are all numbers from 0 on, each once."""
    numbers = [value for value in values if type(value) is int]
    return sorted(numbers) == list(range(len(values)))


def _in_gguf(text: str, is_special: bool) -> str:
    if is_special:
        return text
    return text.removeprefix(continuing) if text.startswith(continuing) else word_mark + text


def _any_step(normalizer: object, does: Callable[[Mapping[str, object]], bool]) -> bool:
    """Whether a normalizer, or any that it is made of, does something."""
    if not isinstance(normalizer, Mapping):
        return False
    inner = normalizer.get("normalizers")
    if isinstance(inner, list):
        return any(_any_step(step, does) for step in inner)
    return does(normalizer)


def _makes_small(step: Mapping[str, object]) -> bool:
    return step.get("type") == "Lowercase" or step.get("lowercase") is True


def _strips(step: Mapping[str, object]) -> bool:
    """Whether accents go; BERT's own rule where it does not say: where letters are made small."""
    said = step.get("strip_accents")
    if isinstance(said, bool):
        return said
    return step.get("type") == "StripAccents" or step.get("lowercase") is True


def _fail(path: Path, field: str, problem: str) -> NoReturn:
    raise ModelFileError(
        f"{path / tokenizer_name}: {field}: {problem}.", file=str(path), field=field
    )
