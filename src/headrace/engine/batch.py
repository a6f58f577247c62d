"""A step's arrays in buffers made once: what the scheduler chose, as the runner reads it."""

import numpy as np

from headrace.engine.logit_edits import LogitEditor, edits_logits, step_edits
from headrace.engine.request import SamplingParams
from headrace.engine.runner import StepBatch
from headrace.engine.scheduler import ScheduledSequence
from headrace.engine.sequence import Sequence

seed_mask = (1 << 64) - 1


class BatchBuilder:
    """Buffers of the largest step, and the sampling parameters of each running slot."""

    def __init__(
        self, rows_max: int, sequences_max: int, table_blocks_max: int, vocab_size: int
    ) -> None:
        self._vocab_size = vocab_size
        self._token_ids = np.zeros(rows_max, np.int32)
        self._row_starts = np.zeros(sequences_max + 1, np.int32)
        self._context_lens = np.zeros(sequences_max, np.int32)
        self._block_ids = np.zeros(sequences_max * table_blocks_max, np.int32)
        self._block_starts = np.zeros(sequences_max + 1, np.int32)
        self._temperature = np.zeros(sequences_max, np.float32)  # these five by slot
        self._top_k = np.zeros(sequences_max, np.int32)
        self._top_p = np.zeros(sequences_max, np.float32)
        self._min_p = np.zeros(sequences_max, np.float32)
        self._seed = np.zeros(sequences_max, np.uint64)
        self._top_counts = np.zeros(sequences_max, np.int32)
        self._editors: list[LogitEditor | None] = [None] * sequences_max
        self._slot_owners: list[Sequence | None] = [None] * sequences_max

    def build(self, scheduled: list[ScheduledSequence]) -> tuple[StepBatch, list[Sequence]]:
        """The step's batch, and the sequences that it samples, in that order.

        The batch's arrays are views of buffers that the next call overwrites."""
        count = len(scheduled)
        row_starts, tables, context_lens = self._row_starts, [], []
        rows = table_blocks = 0
        ends, block_ends = [], []
        sampled, sampled_sequences, slots, positions = [], [], [], []
        for index, (sequence, row_count) in enumerate(scheduled):
            context_len = sequence.computed + row_count
            self._put_tokens(sequence, rows, row_count)
            rows += row_count
            ends.append(rows)
            context_lens.append(context_len)
            block_count = len(sequence.blocks)
            tables.append(sequence.table[:block_count])
            table_blocks += block_count
            block_ends.append(table_blocks)
            if context_len == len(sequence.tokens):
                sampled.append(index)
                sampled_sequences.append(sequence)
                slots.append(sequence.slot)
                positions.append(context_len - sequence.prompt_count)
                if self._slot_owners[sequence.slot] is not sequence:
                    self._put_sampling(sequence)
        row_starts[1 : count + 1] = ends
        self._context_lens[:count] = context_lens
        self._block_starts[1 : count + 1] = block_ends
        np.concatenate(tables, out=self._block_ids[:table_blocks])
        by_slot = np.array(slots, np.intp)
        editors = [self._editors[slot] for slot in slots]
        edits, masks = step_edits(editors) if any(editors) else (None, None)
        top_counts = self._top_counts[by_slot]
        batch = StepBatch(
            token_ids=self._token_ids[:rows],
            row_starts=row_starts[: count + 1],
            context_lens=self._context_lens[:count],
            block_ids=self._block_ids[:table_blocks],
            block_starts=self._block_starts[: count + 1],
            sampled=np.array(sampled, np.int32),
            temperature=self._temperature[by_slot],
            top_k=self._top_k[by_slot],
            top_p=self._top_p[by_slot],
            min_p=self._min_p[by_slot],
            seed=self._seed[by_slot],
            position=np.array(positions, np.int64),
            edits=edits,
            masks=masks,
            top_counts=top_counts if top_counts.any() else None,
        )
        return batch, sampled_sequences

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
        self._seed[slot] = sequence.seed & seed_mask
        self._top_counts[slot] = sampling.top_logprobs or 0
        self._editors[slot] = (
            LogitEditor(sequence, self._vocab_size) if edits_logits(sequence.request) else None
        )
