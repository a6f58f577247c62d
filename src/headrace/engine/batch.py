"""A step's arrays in buffers made once: what the scheduler chose, as the runner reads it.

A runner samples the last row of a sequence. Where more rows of one are wanted, each is a sequence
of its own to the runner, with the same block table: a decode's drafts, whose tokens are verified,
and a prompt whose log-probabilities are asked for.

Sequences of one adapter stand side by side: a runner takes their rows together.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.engine.logit_edits import (
    DraftedEdits,
    EditSource,
    LogitEditor,
    TargetToken,
    edits_logits,
    step_edits,
)
from headrace.engine.request import SamplingParams
from headrace.engine.runner import RareFilters, StepBatch
from headrace.engine.scheduler import ScheduledSequence
from headrace.engine.sequence import Sequence

seed_mask = (1 << 64) - 1


class Sampled(NamedTuple):
    """A sequence's samples, which follow each other in the step's result."""

    sequence: Sequence
    prompt_rows: int  # log-probabilities of the prompt's next tokens
    token_rows: int  # the next token, then one after each draft; 0 in the middle of a prompt


class _Layout:
    """The parts of a step, one after the other, and its samples."""

    def __init__(self, has_adapters: bool) -> None:
        self.has_adapters = has_adapters
        self.rows = 0
        self.part_count = 0
        self.table_blocks = 0
        self.ends: list[int] = []
        self.block_ends: list[int] = []
        self.context_lens: list[int] = []
        self.tables: list[NDArray[np.int32]] = []
        self.adapters: list[int] = []  # slots, -1 is none; empty where no part has one
        self.parts: list[int] = []  # of the samples, ascending
        self.slots: list[int] = []  # of the samples, as the next two
        self.positions: list[int] = []
        self.sources: list[EditSource | None] = []
        self.prompt_samples: list[int] = []
        self.sampled: list[Sampled] = []

    def add_part(self, sequence: Sequence, row_count: int, context_len: int) -> None:
        """Rows that the runner takes for one sequence's."""
        block_count = len(sequence.blocks)
        self.rows += row_count
        self.part_count += 1
        self.table_blocks += block_count
        self.ends.append(self.rows)
        self.block_ends.append(self.table_blocks)
        self.context_lens.append(context_len)
        self.tables.append(sequence.table[:block_count])
        if self.has_adapters:
            self.adapters.append(sequence.adapter_slot)

    def add_sample(self, sequence: Sequence, position: int, source: EditSource | None) -> None:
        """Sample the last row of the part that was added last."""
        self.parts.append(self.part_count - 1)
        self.slots.append(sequence.slot)
        self.positions.append(position)
        self.sources.append(source)


class BatchBuilder:
    """Buffers of the largest step, and the sampling parameters of each running slot."""

    def __init__(
        self,
        rows_max: int,
        sequences_max: int,
        parts_max: int,
        table_blocks_max: int,
        vocab_size: int,
    ) -> None:
        self._vocab_size = vocab_size
        self._token_ids = np.zeros(rows_max, np.int32)
        self._row_starts = np.zeros(parts_max + 1, np.int32)
        self._context_lens = np.zeros(parts_max, np.int32)
        self._block_ids = np.zeros(parts_max * table_blocks_max, np.int32)
        self._block_starts = np.zeros(parts_max + 1, np.int32)
        self._temperature = np.zeros(sequences_max, np.float32)  # these by slot
        self._top_k = np.zeros(sequences_max, np.int32)
        self._top_p = np.zeros(sequences_max, np.float32)
        self._min_p = np.zeros(sequences_max, np.float32)
        self._typical_p = np.ones(sequences_max, np.float32)
        self._xtc_threshold = np.ones(sequences_max, np.float32)
        self._xtc_probability = np.zeros(sequences_max, np.float32)
        self._filtered_slots: set[int] = set()  # by one of the last three
        self._seed = np.zeros(sequences_max, np.uint64)
        self._top_counts = np.zeros(sequences_max, np.int32)
        self._prompt_top_counts = np.zeros(sequences_max, np.int32)
        self._editors: list[LogitEditor | None] = [None] * sequences_max
        self._slot_owners: list[Sequence | None] = [None] * sequences_max

    def build(self, scheduled: list[ScheduledSequence]) -> tuple[StepBatch, list[Sampled]]:
        """The step's batch, and what it samples, in that order.

        The batch's arrays are views of buffers that the next call overwrites."""
        has_adapters = max({sequence.adapter_slot for sequence, _ in scheduled}, default=-1) >= 0
        layout = _Layout(has_adapters)
        if has_adapters:
            scheduled = sorted(scheduled, key=lambda share: share.sequence.adapter_slot)
        for sequence, row_count in scheduled:
            context_len = sequence.computed + row_count
            samples_token = context_len == len(sequence.tokens)
            prompt_rows = 0
            if sequence.prompt_logprobs is not None:
                prompt_rows = sequence.awaited_logprobs(row_count)
            if samples_token or prompt_rows:
                if self._slot_owners[sequence.slot] is not sequence:
                    self._put_sampling(sequence)
                token_rows = 1 + len(sequence.drafts) if samples_token else 0
                layout.sampled.append(Sampled(sequence, prompt_rows, token_rows))
            self._put_tokens(sequence, layout.rows, row_count)
            if prompt_rows:
                self._add_prompt_rows(layout, sequence, row_count, prompt_rows)
            else:
                layout.add_part(sequence, row_count, context_len)
            if samples_token:
                position = context_len - sequence.prompt_count
                layout.add_sample(sequence, position, self._editors[sequence.slot])
                if sequence.drafts:
                    self._add_drafts(layout, sequence, context_len)
        batch = self._batch(layout)
        if has_adapters:
            batch = replace(batch, adapters=np.array(layout.adapters, np.int32))
        return batch, layout.sampled

    def _add_prompt_rows(
        self, layout: _Layout, sequence: Sequence, row_count: int, prompt_rows: int
    ) -> None:
        """Parts of one row each, all but the prompt's last sampled for the token that follows."""
        for position in range(sequence.computed, sequence.computed + row_count):
            layout.add_part(sequence, 1, position + 1)
            if position - sequence.computed < prompt_rows:
                layout.prompt_samples.append(len(layout.parts))
                layout.add_sample(sequence, 0, TargetToken(sequence.tokens[position + 1]))

    def _add_drafts(self, layout: _Layout, sequence: Sequence, context_len: int) -> None:
        """One part for each draft, sampled as if it and those before it were the output."""
        editor = self._editors[sequence.slot]
        for count, token_id in enumerate(sequence.drafts, start=1):
            self._token_ids[layout.rows] = token_id
            layout.add_part(sequence, 1, context_len + count)
            source = None if editor is None else DraftedEdits(editor, sequence.drafts[:count])
            layout.add_sample(sequence, context_len + count - sequence.prompt_count, source)

    def _batch(self, layout: _Layout) -> StepBatch:
        count = layout.part_count
        self._row_starts[1 : count + 1] = layout.ends
        self._context_lens[:count] = layout.context_lens
        self._block_starts[1 : count + 1] = layout.block_ends
        np.concatenate(layout.tables, out=self._block_ids[: layout.table_blocks])
        by_slot = np.array(layout.slots, np.intp)
        edits, masks = step_edits(layout.sources) if any(layout.sources) else (None, None)
        temperature, top_counts = self._temperature[by_slot], self._top_counts[by_slot]
        if layout.prompt_samples:
            temperature[layout.prompt_samples] = 0
            prompt_slots = by_slot[layout.prompt_samples]
            top_counts[layout.prompt_samples] = self._prompt_top_counts[prompt_slots]
        return StepBatch(
            token_ids=self._token_ids[: layout.rows],
            row_starts=self._row_starts[: count + 1],
            context_lens=self._context_lens[:count],
            block_ids=self._block_ids[: layout.table_blocks],
            block_starts=self._block_starts[: count + 1],
            sampled=np.array(layout.parts, np.int32),
            temperature=temperature,
            top_k=self._top_k[by_slot],
            top_p=self._top_p[by_slot],
            min_p=self._min_p[by_slot],
            seed=self._seed[by_slot],
            position=np.array(layout.positions, np.int64),
            edits=edits,
            masks=masks,
            top_counts=top_counts if top_counts.any() else None,
            filters=self._filters(by_slot),
        )

    def _filters(self, by_slot: NDArray[np.intp]) -> RareFilters | None:
        if not self._filtered_slots or self._filtered_slots.isdisjoint(by_slot.tolist()):
            return None
        return RareFilters(
            self._typical_p[by_slot], self._xtc_threshold[by_slot], self._xtc_probability[by_slot]
        )

    def _put_tokens(self, sequence: Sequence, row: int, row_count: int) -> None:
        if row_count == 1:
            self._token_ids[row] = sequence.tokens[sequence.computed]
        else:
            chunk = np.frombuffer(sequence.tokens, np.int32, row_count, 4 * sequence.computed)
            self._token_ids[row : row + row_count] = chunk

    def _put_sampling(self, sequence: Sequence) -> None:
        """Fill the slot's row, once for each time that a sequence is admitted."""
        slot = sequence.slot
        sampling: SamplingParams = sequence.request.sampling
        self._slot_owners[slot] = sequence
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._typical_p[slot] = sampling.typical_p
        self._xtc_threshold[slot] = sampling.xtc_threshold
        self._xtc_probability[slot] = sampling.xtc_probability
        if sampling.typical_p < 1 or sampling.xtc_probability > 0:
            self._filtered_slots.add(slot)
        else:
            self._filtered_slots.discard(slot)
        self._seed[slot] = sequence.seed & seed_mask
        self._top_counts[slot] = sampling.top_logprobs or 0
        self._prompt_top_counts[slot] = sampling.prompt_logprobs or 0
        self._editors[slot] = (
            LogitEditor(sequence, self._vocab_size) if edits_logits(sequence.request) else None
        )
