"""How text is cut into words before byte-pair merging, by the name that a model file gives.

A wrong cut gives other tokens than the model was trained on, and quietly worse answers; so a name
that is not here is refused. Each rule's patterns agree with llama.cpp's for the same name, tested
token by token over a vocabulary that crosses all cuts (tests/golden/test_cuts.py); where
llama.cpp's leave out combining marks, with those of the models' own files.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.base.errors import ModelFileError

# GPT-2's: contractions, words, numbers and punctuation, each with one space before it.
_gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_contractions = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_llama3 = rf"{_contractions}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_rest}"
# o200k's: words end before a capital that follows small letters; a slash may end punctuation.
_upper, _lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_before = r"[^\r\n\p{L}\p{N}]?"
_slashed_rest = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_gpt_4o = (
    rf"{_before}{_upper}*{_lower}+{_contractions}?|{_before}{_upper}+{_lower}*{_contractions}?"
    rf"|\p{{N}}{{1,3}}|{_slashed_rest}"
)
_tekken = rf"{_before}{_upper}*{_lower}+|{_before}{_upper}+{_lower}*|\p{{N}}|{_slashed_rest}"
_qwen2 = rf"{_contractions}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_rest}"


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """Patterns applied one after the other, each to the pieces of the one before."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a token itself is taken whole
    adds_bos: bool = False  # where the file does not say


_gpt2_rule = PreTokenizerRule((_gpt2,))
_digits_then_gpt2 = PreTokenizerRule((r"\p{N}", _gpt2))
_llama3_rule = PreTokenizerRule((_llama3,), ignore_merges=True, adds_bos=True)
_gpt_4o_rule = PreTokenizerRule((_gpt_4o,))
_qwen2_rule = PreTokenizerRule((_qwen2,))

rules: Mapping[str, PreTokenizerRule] = {
    "gpt-2": _gpt2_rule,
    "phi-2": _gpt2_rule,
    "mpt": _gpt2_rule,
    "olmo": _gpt2_rule,
    "exaone4": _gpt2_rule,
    "smollm": _digits_then_gpt2,
    "starcoder": _digits_then_gpt2,
    "refact": _digits_then_gpt2,
    "command-r": _digits_then_gpt2,
    "codeshell": _digits_then_gpt2,
    "exaone": _digits_then_gpt2,
    "minerva-7b": _digits_then_gpt2,
    "llama-bpe": _llama3_rule,
    "llama3": _llama3_rule,
    "llama-v3": _llama3_rule,
    "falcon3": _llama3_rule,
    "pixtral": _llama3_rule,
    "lfm2": _llama3_rule,
    "dbrx": PreTokenizerRule((_llama3,)),
    "smaug-bpe": PreTokenizerRule((_llama3,)),
    "llama4": _gpt_4o_rule,
    "gpt-4o": _gpt_4o_rule,
    "tekken": PreTokenizerRule((_tekken,), ignore_merges=True, adds_bos=True),
    "qwen2": _qwen2_rule,
    "deepseek-r1-qwen": _qwen2_rule,
    "stablelm2": _qwen2_rule,
    "megrez": _qwen2_rule,
}


def find_rule(name: str) -> PreTokenizerRule:
    """The rule of that name; ModelFileError naming it if it is not known."""
    rule = rules.get(name)
    if rule is None:
        raise ModelFileError(
            f"tokenizer.ggml.pre: the pre-tokenizer {name!r} is not supported; use a model with "
            f"one of {', '.join(sorted(rules))}.",
            field="tokenizer.ggml.pre",
        )
    return rule
