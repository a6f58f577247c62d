"""Every pre-tokenizer cuts texts as llama.cpp's of that name does, as recorded by record_cuts.py.

For three names llama.cpp's pattern leaves out combining marks, which the models' own files count
among the letters. There the files' pattern decides, by the library that the files are for.
"""

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from headrace.tokenizer.pre_tokenizers import rules
from headrace.tokenizer.tokenizer import Tokenizer

recording = json.loads((Path(__file__).parent / "cuts.json").read_text())
recorded_as = {name: name for name in recording["ids"]} | recording["same_as"]

# As the tokenizer.json of gpt-oss and of Mistral's models has it.
_before, _end = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_upper, _lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_short = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_words = rf"{_before}{_upper}*{_lower}+{_short}|{_before}{_upper}+{_lower}*{_short}"
_o200k = rf"{_words}|\p{{N}}{{1,3}}|{_end}"
_tekken = rf"{_before}{_upper}*{_lower}+|{_before}{_upper}+{_lower}*|\p{{N}}|{_end}"
published = {"gpt-4o": _o200k, "llama4": _o200k, "tekken": _tekken}


def tokenizer_of(pre_tokenizer: str) -> Tokenizer:
    control, normal = 3, 1
    tokens = recording["tokens"]
    kinds = np.array([control] + [normal] * (len(tokens) - 1), np.int32)
    return Tokenizer.from_gguf_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre_tokenizer,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.merges": [" ".join(pair) for pair in recording["merges"]],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 0,
        }
    )


def library_of(pattern: str, *, ignore_merges: bool) -> tokenizers.Tokenizer:
    vocabulary = {token: index for index, token in enumerate(recording["tokens"])}
    merges = [tuple(pair) for pair in recording["merges"]]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, merges, ignore_merges=ignore_merges)
    )
    steps = tokenizers.pre_tokenizers
    made.pre_tokenizer = steps.Sequence(
        [
            steps.Split(tokenizers.Regex(pattern), "isolated"),
            steps.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return made


def has_marks(text: str) -> bool:
    return any(unicodedata.category(character).startswith("M") for character in text)


def test_every_name_is_recorded() -> None:
    assert set(recorded_as) == set(rules)


@pytest.mark.parametrize("name", sorted(recorded_as))
def test_ids_are_those_of_llama_cpp(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for text, expected in zip(recording["texts"], recording["ids"][recorded_as[name]], strict=True):
        if name not in published or not has_marks(text):
            assert tokenizer.encode(text) == expected, text


@pytest.mark.parametrize("name", sorted(published))
def test_marks_belong_to_their_letters_as_the_models_files_say(name: str) -> None:
    tokenizer = tokenizer_of(name)
    library = library_of(published[name], ignore_merges=rules[name].ignore_merges)
    assert sum(map(has_marks, recording["texts"])) > 3
    for text in recording["texts"]:
        assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids, text
