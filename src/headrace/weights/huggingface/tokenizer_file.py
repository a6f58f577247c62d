"""From tokenizer.json and its companions to the tokenizer keys that a GGUF file has.

Byte-level BPE here, SentencePiece in `sentence_piece_file`. How text is cut before merging must be
one of the ways known here, because another cut gives other tokens than the model was trained on;
what is not known is refused by name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np

from headrace.base.errors import ModelFileError
from headrace.weights.huggingface.config import text_part
from headrace.weights.huggingface.sentence_piece_file import (
    is_sentence_piece,
    sentence_piece_keys,
)

tokenizer_name = "tokenizer.json"
json_bytes_max = 256 << 20
tokens_max = 1 << 22
most = 1e30  # of a score, either way
normal, control, user_defined, unused = 1, 3, 4, 5  # GGUF's kinds of token

_contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_llama3 = rf"{_contractions}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_rest}"
_qwen2 = rf"{_contractions}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_rest}"
_capitals, _smalls = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_before = r"[^\r\n\p{L}\p{N}]?"
_words = (f"{_before}{_capitals}*{_smalls}+", f"{_before}{_capitals}+{_smalls}*")
_slashed_rest = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_gpt_4o = "|".join([f"{word}{_contractions}?" for word in _words] + [r"\p{N}{1,3}", _slashed_rest])
_tekken = "|".join([*_words, r"\p{N}", _slashed_rest])
# What stands before the bytes, and whether a whole piece may be a token -> the GGUF name.
cuts = {
    ((_llama3,), True): "llama-bpe",
    ((_llama3,), False): "smaug-bpe",
    ((_qwen2,), False): "qwen2",
    ((_gpt_4o,), False): "gpt-4o",
    ((_tekken,), True): "tekken",
    (("gpt2",), False): "gpt-2",
    (("digits", "gpt2"), False): "smollm",
}


def read_tokenizer_metadata(path: Path, config: Mapping[str, object]) -> dict[str, object]:
    """The directory's tokenizer under GGUF's keys; empty if it has none."""
    if not (path / tokenizer_name).is_file():
        return {}
    file = read_json_object(path / tokenizer_name)
    model = file.get("model")
    if not isinstance(model, dict) or model.get("type") not in ("BPE", "Unigram"):
        kind = model.get("type") if isinstance(model, dict) else model
        _fail(path, "model", f"{kind!r} is not supported; headrace reads BPE and Unigram")
    texts, kinds = _vocabulary(path, file, model, _row_count(path, config))
    special = _special_tokens(path, config, file)
    settings = read_json_object(path / "tokenizer_config.json")
    template = _chat_template(path, settings)
    if is_sentence_piece(model):
        keys = sentence_piece_keys(file, model, texts, kinds)
    else:
        keys = {
            "tokenizer.ggml.model": "gpt2",
            **_cut(path, file, ignore_merges=bool(model.get("ignore_merges"))),
            "tokenizer.ggml.token_type": np.array(kinds, np.int32),
            "tokenizer.ggml.merges": _merges(path, model),
        }
    stripped = _strip_after(file)
    return {
        "tokenizer.ggml.tokens": texts,
        **keys,
        **special,
        **({"headrace.tokenizer.strip_after": stripped} if stripped else {}),
        **({} if template is None else {"tokenizer.chat_template": template}),
    }


def _row_count(path: Path, config: Mapping[str, object]) -> int:
    """How many tokens the embedding has a row for; often more than the tokenizer has."""
    found = text_part(config).get("vocab_size", 0)
    return _token_id(path, found)


def _vocabulary(
    path: Path, file: Mapping[str, object], model: Mapping[str, object], row_count: int
) -> tuple[list[str], list[int]]:
    """Token texts and kinds by id; an id without a token is unused.

    Every row of the embedding has one, as llama.cpp wants it of GGUF files."""
    vocab, added = model.get("vocab"), file.get("added_tokens", [])
    if model.get("type") == "Unigram" and isinstance(vocab, list):
        vocab = {_scored_text(path, entry): index for index, entry in enumerate(vocab)}
    if not isinstance(vocab, dict) or not isinstance(added, list):
        _fail(path, "vocab", "is missing")
    named: dict[int, tuple[str, int]] = {}
    for text, token_id in vocab.items():
        named[_token_id(path, token_id)] = (text, normal)
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            _fail(path, "added_tokens", "an entry has no content")
        kind = control if token.get("special") else user_defined
        named[_token_id(path, token.get("id"))] = (token["content"], kind)
    if not named:
        _fail(path, "vocab", "is empty")
    count = max(max(named) + 1, row_count)
    every = [named.get(token_id, (f"[PAD{token_id}]", unused)) for token_id in range(count)]
    return [text for text, _ in every], [kind for _, kind in every]


def _scored_text(path: Path, entry: object) -> str:
    text, score = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
    if not isinstance(text, str) or not isinstance(score, int | float) or not abs(score) <= most:
        _fail(path, "vocab", f"{json.dumps(entry)[:100]} is no token with its score")
    return text


def _strip_after(file: Mapping[str, object]) -> list[str]:
    """Tokens that swallow the white space behind them."""
    added = file.get("added_tokens", [])
    assert isinstance(added, list), "checked with the vocabulary"
    return [token["content"] for token in added if token.get("rstrip") is True]


def _token_id(path: Path, value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < tokens_max:
        _fail(path, "vocab", f"{value!r} is not a token's id")
    return value


def _merges(path: Path, model: Mapping[str, object]) -> list[str]:
    merges = model.get("merges")
    if not isinstance(merges, list):
        _fail(path, "merges", "is missing")
    parts = [merge if isinstance(merge, list) else [merge] for merge in merges]
    if not all(isinstance(text, str) for texts in parts for text in texts):
        _fail(path, "merges", "an entry is not text")
    return [" ".join(texts) for texts in parts]


def _cut(path: Path, file: Mapping[str, object], *, ignore_merges: bool) -> dict[str, object]:
    """GGUF's name of how text is cut into pieces, and what that name leaves open."""
    root = file.get("pre_tokenizer")
    if not isinstance(root, dict):
        _fail(path, "pre_tokenizer", "is missing")
    steps = root.get("pretokenizers", [root])
    pieces: list[str] = []
    for step in steps if isinstance(steps, list) else []:
        match step:
            case {"type": "Split", "pattern": {"Regex": str(pattern)}, **settings} if settings.get(
                "behavior"
            ) == "Isolated" or (settings.get("behavior"), settings.get("invert")) == (
                "Removed",
                True,
            ):  # what no pattern matches is removed, and the patterns that are known match all
                pieces.append(pattern)
            case {"type": "Digits", "individual_digits": True}:
                pieces.append("digits")
            case {"type": "ByteLevel", "add_prefix_space": False, **settings}:
                if settings.get("use_regex", True):
                    pieces.append("gpt2")
            case _:
                _fail(path, "pre_tokenizer", f"the step {json.dumps(step)[:200]} is not supported")
    cut = tuple(pieces)
    name = cuts.get((cut, ignore_merges))
    keys: dict[str, object] = {}
    if name is None:  # the same cut under another way of merging
        name = cuts.get((cut, not ignore_merges))
        keys["headrace.tokenizer.ignore_merges"] = ignore_merges
    normalizer = file.get("normalizer")
    if name is None or normalizer not in (None, {"type": "NFC"}):
        _fail(path, "pre_tokenizer", f"cutting text by {pieces} is not supported")
    if normalizer is not None:
        keys["headrace.tokenizer.composes"] = True
    return {"tokenizer.ggml.pre": name} | keys


def _special_tokens(
    path: Path, config: Mapping[str, object], file: Mapping[str, object]
) -> dict[str, object]:
    generation = read_json_object(path / "generation_config.json")
    found: dict[str, object] = {}
    begin = config.get("bos_token_id", generation.get("bos_token_id"))
    if isinstance(begin, int):
        found["tokenizer.ggml.bos_token_id"] = begin
    ends: list[int] = []
    for source in (config, generation):
        value = source.get("eos_token_id")
        listed = value if isinstance(value, list) else [value]
        ends += [end for end in listed if isinstance(end, int)]
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    for key, end in zip(keys, dict.fromkeys(ends), strict=False):
        found[f"tokenizer.ggml.{key}"] = end
    if "tokenizer.ggml.bos_token_id" in found:
        found["tokenizer.ggml.add_bos_token"] = _begins_with_special(file.get("post_processor"))
    return found


def _begins_with_special(processor: object) -> bool:
    """Whether the post-processor puts a special token before a text."""
    if not isinstance(processor, dict):
        return False
    inner = processor.get("processors")
    if isinstance(inner, list):
        return any(_begins_with_special(step) for step in inner)
    single = processor.get("single")
    first = single[0] if isinstance(single, list) and single else None
    return isinstance(first, dict) and "SpecialToken" in first


def _chat_template(path: Path, settings: Mapping[str, object]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file() and file.stat().st_size <= json_bytes_max:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"{file}: cannot be read ({error}).", file=str(file)) from error
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name; the default is the one for chats
        named = [entry for entry in template if isinstance(entry, dict)]
        default = [entry for entry in named if entry.get("name") == "default"]
        template = default[-1].get("template") if default else None
    return template if isinstance(template, str) else None


def read_json_object(path: Path) -> dict[str, object]:
    """A JSON object; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > json_bytes_max:
            _fail(path.parent, path.name, f"is over {json_bytes_max >> 20} MiB")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        _fail(path.parent, path.name, f"cannot be read ({error})")
    if not isinstance(value, dict):
        _fail(path.parent, path.name, "is not a JSON object")
    return value


def _fail(path: Path, field: str, problem: str) -> NoReturn:
    raise ModelFileError(
        f"{path / tokenizer_name}: {field}: {problem}.", file=str(path), field=field
    )
