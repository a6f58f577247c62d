"""A tokenizer.json of a SentencePiece model, under the keys that a GGUF file has for it.

The converters of the `tokenizers` library write such a model as BPE with byte fallback, or as
unigram; the space before a text is a normalizer (older files, for each stretch of text) or a
pre-tokenizer with a scheme. Any other step is refused by name.
"""

import base64
import json
import re
from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from headrace.base.errors import ModelFileError

space_mark = "\u2581"
normal, unknown, byte = 1, 2, 6  # GGUF's kinds of token
byte_pattern = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def is_sentence_piece(model: Mapping[str, object]) -> bool:
    """Whether a tokenizer.json's model is one."""
    return model.get("type") == "Unigram" or (
        model.get("type") == "BPE" and model.get("byte_fallback") is True
    )


def sentence_piece_keys(
    file: Mapping[str, object], model: Mapping[str, object], texts: list[str], kinds: list[int]
) -> dict[str, object]:
    """Model, scores, kinds and text rule; ModelFileError names a step that is not known."""
    unigram = model.get("type") == "Unigram"
    scores = _unigram_scores(model, texts) if unigram else _merge_scores(model, texts)
    unknown_id = _unknown_id(model, texts)
    kinds = [
        byte if kind == normal and byte_pattern.fullmatch(text) else kind
        for text, kind in zip(texts, kinds, strict=True)
    ]
    if unknown_id is not None:
        kinds[unknown_id] = unknown
    return {
        "tokenizer.ggml.model": "t5" if unigram else "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        **({} if unknown_id is None else {"tokenizer.ggml.unknown_token_id": unknown_id}),
        **_text_rule(file),
    }


def _unigram_scores(model: Mapping[str, object], texts: list[str]) -> list[float]:
    vocab = model.get("vocab")
    assert isinstance(vocab, list), "the vocabulary was read from it"
    known = {str(text): float(score) for text, score in vocab}
    return [known.get(text, 0.0) for text in texts]


def _merge_scores(model: Mapping[str, object], texts: list[str]) -> list[float]:
    """Minus the rank of the first merge that makes a token, as SentencePiece scores them."""
    ranks: dict[str, int] = {}
    merges = model.get("merges")
    for merge in merges if isinstance(merges, list) else []:
        parts = merge if isinstance(merge, list) else [merge]
        if not all(isinstance(part, str) for part in parts):
            _refuse(merge)
        joined = parts[0].replace(" ", "", 1) if len(parts) == 1 else "".join(parts)
        ranks.setdefault(joined, len(ranks))
    return [float(-ranks.get(text, len(ranks))) for text in texts]


def _unknown_id(model: Mapping[str, object], texts: list[str]) -> int | None:
    found = model.get("unk_id")
    if isinstance(found, int) and 0 <= found < len(texts):
        return found
    named = model.get("unk_token")
    return texts.index(named) if isinstance(named, str) and named in texts else None


def _text_rule(file: Mapping[str, object]) -> dict[str, object]:
    """What is done to a text before it is cut."""
    rule: dict[str, object] = {"tokenizer.ggml.add_space_prefix": False}
    for step in [*_steps(file, "normalizer"), *_steps(file, "pre_tokenizer")]:
        match step:
            case {"type": "Prepend", "prepend": "\u2581"}:
                rule["tokenizer.ggml.add_space_prefix"] = True
            case {"type": "Metaspace", "replacement": "\u2581", **settings}:
                scheme = settings.get("prepend_scheme", "always")
                rule["tokenizer.ggml.add_space_prefix"] = scheme != "never"
                rule["headrace.tokenizer.space_prefix_scheme"] = str(scheme)
            case {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
                pass
            case {"type": "Split", "pattern": {"String": " "}}:
                pass  # Gemma's: after spaces were replaced there are none to cut at
            case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
                try:
                    data = base64.b64decode(table)
                except ValueError:
                    _refuse(step)
                rule["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(data, np.uint8)
            case {"type": "Strip"} | {"type": "Replace", "pattern": {"Regex": " {2,}"}}:
                rule["tokenizer.ggml.remove_extra_whitespaces"] = True
            case _:
                _refuse(step)
    return rule


def _steps(file: Mapping[str, object], name: str) -> list[object]:
    root = file.get(name)
    if root is None:
        return []
    if isinstance(root, dict) and root.get("type") == "Sequence":
        inner = root.get(f"{name}s", root.get("pretokenizers"))
        return list(inner) if isinstance(inner, list) else [root]
    return [root]


def _refuse(step: object) -> NoReturn:
    raise ModelFileError(
        f"tokenizer.json: the step {json.dumps(step)[:200]} is not supported for a SentencePiece "
        "model.",
        field="normalizer",
    )
