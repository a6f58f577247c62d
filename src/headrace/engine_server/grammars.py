"""Grammars that an answer must follow: compiled once a request, then asked for a mask a token.

Compiling and masking are llguidance's. It is bounded by fuel instead of time, so that the same
grammar is refused, or not, on every machine.
"""

from array import array
from collections.abc import Sequence
from pathlib import Path

import llguidance
import numpy as np
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

from headrace.base.errors import InvalidRequest
from headrace.engine_server.messages import Grammar
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.model_file import open_model

grammar_characters_max = 128 * 1024
initial_lexer_fuel = 1_000_000  # of compiling: tens of milliseconds
step_lexer_fuel = 200_000  # of one mask: about 14 ms
silent = 0  # llguidance's level of logging
reason_characters_max = 500  # of a refusal; it quotes what was sent
special_marker = b"\xff"  # llguidance's sign of a token that no text can write


class GrammarConstraint:
    """One request's place in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._consumed = array("i")
        self._mask = np.zeros((1, (vocab_size + 31) // 32), np.int32)

    def mask_after(self, output_token_ids: Sequence[int]) -> NDArray[np.uint32]:
        """The tokens that may follow this output; valid until the next call.

        Where the grammar is complete only the end of the answer may follow; where fuel ran out,
        nothing may."""
        self._move_to(output_token_ids)
        fill_next_token_bitmask(self._matcher, self._mask)
        if self._matcher.is_error():
            self._mask[:] = 0
        words: NDArray[np.uint32] = self._mask[0].view(np.uint32)
        return words

    def allowed_count(self, output_token_ids: Sequence[int], guesses: Sequence[int]) -> int:
        """How many of these tokens, one after the other, may follow this output."""
        self._move_to(output_token_ids)
        if self._matcher.is_stopped():
            return 0
        count: int = self._matcher.validate_tokens(list(guesses))
        return count

    def forced_after(self, output_token_ids: Sequence[int], count: int) -> list[int]:
        """The tokens of the text that has to come next, as the tokenizer would write it."""
        self._move_to(output_token_ids)
        if self._matcher.is_stopped():
            return []
        forced: list[int] = self._matcher.compute_ff_tokens()[:count]
        return forced[: self._matcher.validate_tokens(forced)] if forced else []

    def fresh(self) -> "GrammarConstraint":
        """The grammar at its start."""
        assert not self._consumed, "choices are made before the first has an output"
        return GrammarConstraint(self._matcher.deep_copy(), self._vocab_size)

    def _move_to(self, output_token_ids: Sequence[int]) -> None:
        """Go on to this output, or back to what it shares with the last one and on from there.

        A grammar that is complete takes nothing more; only the end may follow it."""
        consumed, output = self._consumed, output_token_ids
        if not isinstance(output, array):
            output = array("i", iter(output))
        shared = min(len(consumed), len(output))
        if consumed[:shared] != output[:shared]:
            shared = next(i for i in range(shared) if consumed[i] != output[i])
        if shared < len(consumed):
            self._matcher.rollback(len(consumed) - shared)
            del consumed[shared:]
        for token_id in output[shared:]:
            if self._matcher.is_stopped():
                return
            self._matcher.consume_token(token_id)
            consumed.append(token_id)


class GrammarCompiler:
    """Compiles grammars for one model; its vocabulary is read when the first one comes."""

    def __init__(self, model_path: Path, vocab_size: int) -> None:
        self._model_path = model_path
        self._vocab_size = vocab_size
        self._tokenizer: llguidance.LLTokenizer | None = None

    def compile(self, grammar: Grammar) -> GrammarConstraint:
        """The grammar at its start; InvalidRequest if it is wrong or too large."""
        if len(grammar.text) > grammar_characters_max:
            raise InvalidRequest(
                f"The grammar has {len(grammar.text)} characters; it may have "
                f"{grammar_characters_max}.",
                param=grammar.param,
            )
        if self._tokenizer is None:
            self._tokenizer = _read_tokenizer(self._model_path, self._vocab_size)
        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=initial_lexer_fuel, step_lexer_fuel=step_lexer_fuel
        )
        try:
            matcher = llguidance.LLMatcher(
                self._tokenizer, _source_of(grammar), log_level=silent, limits=limits
            )
        except ValueError as error:
            raise _refusal(grammar, str(error)) from None
        if matcher.is_error():
            raise _refusal(grammar, matcher.get_error())
        constraint = GrammarConstraint(matcher, self._vocab_size)
        if not constraint.mask_after([]).any():
            raise _refusal(
                grammar, "nothing can be written by it; does a part refer to itself without an end?"
            )
        return constraint


def _source_of(grammar: Grammar) -> str:
    if grammar.kind == "json_schema":
        return llguidance.LLMatcher.grammar_from_json_schema(grammar.text)
    if grammar.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(grammar.text)
    return llguidance.LLMatcher.grammar_from_lark(grammar.text)


def _refusal(grammar: Grammar, text: str) -> InvalidRequest:
    """The compiler's words in one line: what is wrong comes first, or behind `error:`."""
    lines = [line.strip() for line in text.strip().splitlines()]
    reason = next((line for line in lines if line.startswith("error:")), "")
    words = " ".join(part for part in (lines[0] if lines else "", reason) if part)
    return InvalidRequest(
        f"{grammar.param} cannot be used: {words[:reason_characters_max]}", param=grammar.param
    )


class _Vocabulary:
    """A tokenizer as llguidance reads one: as many tokens as the model has logits."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        ids = range(vocab_size)
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = min(tokenizer.eos_ids)
        self.special_token_ids = [i for i in ids if not tokenizer.text_bytes(i)]
        special = set(self.special_token_ids)
        self.tokens = [
            special_marker + tokenizer.token_bytes(i) if i in special else tokenizer.text_bytes(i)
            for i in ids
        ]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


def _read_tokenizer(path: Path, vocab_size: int) -> llguidance.LLTokenizer:
    with open_model(path) as file:
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocab_size)),
        n_vocab=vocab_size,
        eos_token=sorted(tokenizer.eos_ids),
    )
