"""What a request changes in its logits: penalties, biases, bans and a mask of allowed tokens.

A sequence that asks for nothing has no `LogitEditor`, and a step without any has no edit arrays.
The order of the rules is that of docs/concepts/sampling.md.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as TokenIds
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.engine.dry_penalty import dry_penalties
from headrace.engine.request import EngineRequest
from headrace.engine.runner import LogitEdits, TokenMasks
from headrace.engine.sequence import Sequence
from headrace.engine.thought_budget import is_spent

RowEdits = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]

mask_word_bits = 32
certain_addend = np.float32(1e30)  # makes a token the likeliest, whatever the logits are
no_row_edits: RowEdits = (np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.float32))


class EditSource(Protocol):
    """What says how one sample's logits are changed."""

    def edits(self) -> RowEdits:
        """The edits of the sample."""
        ...

    def mask(self) -> NDArray[np.uint32] | None:
        """The tokens that the sample may be; None if all. It is read at once."""
        ...


class TargetToken:
    """Makes the sample a known token, so that the step reports its log-probability."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def edits(self) -> RowEdits:
        """An addend that outweighs every logit."""
        return (
            np.array([self._token_id], np.int32),
            np.ones(1, np.float32),
            np.array([certain_addend], np.float32),
        )

    def mask(self) -> None:
        """All tokens are left in the running."""
        return


class LogitEditor:
    """Follows one sequence's tokens, and says before each sample what to change."""

    def __init__(self, sequence: Sequence, vocab_size: int) -> None:
        sampling = sequence.request.sampling
        self._sequence = sequence
        self._sampling = sampling
        self._bias = dict(sampling.logit_bias)
        self._ids = array("i")  # tokens with penalties or a bias, in the order they were met
        self._counts = array("i")  # in the output, for each of `_ids`
        self._in_prompt = array("b")  # for each of `_ids`
        self._biases = array("f")
        self._places: dict[int, int] = {}
        self._taken = 0  # tokens of the sequence that are counted
        self._allowed = mask_of(sampling.allowed_token_ids, vocab_size)
        for token_id in self._bias:
            self._place(token_id)

    def edits(self) -> RowEdits:
        """The edits of the sample that comes next."""
        bans, sampling = self._bans(), self._sampling
        repeated: dict[int, float] = {}
        if sampling.dry_multiplier:
            repeated = dry_penalties(self._sequence.tokens, sampling)
        if self._needs_counts:
            self._count_tokens()
        forced = self._forced()
        if not self._ids and not bans and not repeated and not forced:
            return no_row_edits
        counts = np.array(self._counts, np.float32)
        seen = np.array(self._in_prompt, np.bool_) | (counts > 0)
        factors = np.where(seen, np.float32(sampling.repetition_penalty), np.float32(1))
        addends = (
            np.array(self._biases, np.float32)
            - np.float32(sampling.frequency_penalty) * counts
            - np.float32(sampling.presence_penalty) * (counts > 0)
        )
        return (
            np.array([*self._ids, *repeated, *forced, *bans], np.int32),
            np.concatenate([factors, np.ones(len(repeated) + len(forced) + len(bans))]).astype(
                np.float32
            ),
            np.concatenate(
                [
                    addends,
                    -np.array([*repeated.values()]),
                    np.full(len(forced), certain_addend),
                    np.full(len(bans), -np.inf),
                ]
            ).astype(np.float32),
        )

    def edits_after(self, drafts: TokenIds[int]) -> RowEdits:
        """The edits of the sample after these drafts, if they were the output's next tokens."""
        tokens, count = self._sequence.tokens, len(self._sequence.tokens)
        tokens.extend(drafts)
        try:
            return self.edits()
        finally:
            for index in range(count, self._taken):
                self._counts[self._places[tokens[index]]] -= 1
            self._taken = min(self._taken, count)
            del tokens[count:]

    def mask(self) -> NDArray[np.uint32] | None:
        """The tokens that the next sample may be; None if all."""
        return self.mask_after(())

    def mask_after(self, drafts: TokenIds[int]) -> NDArray[np.uint32] | None:
        """The same of the sample after these drafts."""
        sequence, constraint = self._sequence, self._sequence.constraint
        if constraint is None:
            return self._allowed
        output = sequence.output
        output.extend(drafts)
        words = constraint.mask_after(output)
        if self._allowed is not None:
            return words & self._allowed
        return words.copy() if sequence.drafts else words  # the next call overwrites it

    @property
    def _needs_counts(self) -> bool:
        sampling = self._sampling
        return (
            sampling.repetition_penalty != 1
            or sampling.frequency_penalty != 0
            or sampling.presence_penalty != 0
        )

    def _count_tokens(self) -> None:
        """Take in the tokens since the last call; a preemption takes none back."""
        tokens, prompt_count = self._sequence.tokens, self._sequence.prompt_count
        if self._taken == 0 and self._sampling.repetition_penalty == 1:
            self._taken = prompt_count  # only the output counts for the other two
        for index in range(self._taken, len(tokens)):
            place = self._place(tokens[index])
            if index < prompt_count:
                self._in_prompt[place] = 1
            else:
                self._counts[place] += 1
        self._taken = len(tokens)

    def _place(self, token_id: int) -> int:
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = len(self._ids)
            self._ids.append(token_id)
            self._counts.append(0)
            self._in_prompt.append(0)
            self._biases.append(self._bias.get(token_id, 0.0))
        return place

    def _forced(self) -> list[int]:
        """The mark that ends a thought, where it has to come now."""
        budget, sequence = self._sampling.thought_budget, self._sequence
        if budget is None or not is_spent(sequence.output, budget):
            return []
        return [budget.closing_id]

    def _bans(self) -> list[int]:
        """Stop tokens before `min_tokens`, and the last token of each bad word that is due."""
        sequence = self._sequence
        bans: list[int] = []
        if sequence.completion_count < sequence.min_tokens:
            bans += sequence.stop_token_ids
        for word in self._sampling.bad_words:
            before = len(word) - 1
            output_tail = sequence.tokens[max(sequence.prompt_count, sequence.total - before) :]
            if not before or tuple(output_tail) == word[:-1]:
                bans.append(word[-1])
        return bans


class DraftedEdits:
    """What an editor says of the sample after drafts that are not known to be right yet."""

    def __init__(self, editor: LogitEditor, drafts: TokenIds[int]) -> None:
        self._editor = editor
        self._drafts = drafts

    def edits(self) -> RowEdits:
        """The edits after the drafts."""
        return self._editor.edits_after(self._drafts)

    def mask(self) -> NDArray[np.uint32] | None:
        """The tokens allowed after the drafts."""
        return self._editor.mask_after(self._drafts)


def edits_logits(request: EngineRequest) -> bool:
    """Whether a request needs an editor."""
    sampling = request.sampling
    return bool(
        request.constraint is not None
        or sampling.repetition_penalty != 1
        or sampling.frequency_penalty != 0
        or sampling.presence_penalty != 0
        or sampling.logit_bias
        or sampling.dry_multiplier
        or sampling.thought_budget is not None
        or sampling.bad_words
        or sampling.allowed_token_ids is not None
        or (sampling.min_tokens and sampling.stop_token_ids)
    )


def mask_of(allowed_ids: Iterable[int] | None, vocab_size: int) -> NDArray[np.uint32] | None:
    """The allowed ids as bits, bit i % 32 of word i // 32; None if all are allowed."""
    if allowed_ids is None:
        return None
    ids = np.fromiter(allowed_ids, np.int64)
    words = np.zeros((vocab_size + mask_word_bits - 1) // mask_word_bits, np.uint32)
    bits = np.uint32(1) << (ids % mask_word_bits).astype(np.uint32)
    np.bitwise_or.at(words, ids // mask_word_bits, bits)
    return words


def step_edits(
    sources: TokenIds[EditSource | None],
) -> tuple[LogitEdits | None, TokenMasks | None]:
    """The edits and masks of a step's samples, None where no sample has any."""
    rows = [no_row_edits if source is None else source.edits() for source in sources]
    masks = [None if source is None else source.mask() for source in sources]
    ends = np.cumsum([0, *(len(row[0]) for row in rows)], dtype=np.int32)
    edits = None
    if ends[-1]:
        edits = LogitEdits(
            ends, *(np.concatenate([row[field] for row in rows]) for field in range(3))
        )
    words = [mask for mask in masks if mask is not None]
    if not words:
        return edits, None
    has_mask = np.array([mask is not None for mask in masks])
    mask_rows = np.where(has_mask, np.cumsum(has_mask) - 1, -1).astype(np.int32)
    return edits, TokenMasks(mask_rows, np.stack(words))
