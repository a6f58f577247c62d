"""A model runner in plain NumPy: a real transformer over paged float32 KV, slow and obvious.

It is to a compiled runner what `kernels/reference` is to one kernel: give both the same batches,
and they must choose the same tokens.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.engine.runner import RunnerInfo, StepBatch, StepResult
from headrace.kernels.architecture import ArchitectureSpec
from headrace.kernels.reference.attention import gather_context
from headrace.kernels.reference.attention_families import attend
from headrace.kernels.reference.sampler import Edits, no_edits, sample, top_tokens
from headrace.kernels.reference.transformer import (
    Floats,
    Model,
    attention_rule,
    embed,
    output_logits,
    run_layer,
)
from headrace.kernels.rotation import rotations_of
from headrace.sim.runner import check_batch, filters_of, table_of


class NumpyRunner:
    """Runs an architecture spec with its float32 tensors by GGUF name."""

    def __init__(
        self,
        spec: ArchitectureSpec,
        tensors: Mapping[str, Floats],
        *,
        num_blocks: int = 64,
        block_size_tokens: int = 4,
        max_model_len: int = 128,
        rows_max: int = 64,
        sequences_max: int = 16,
    ) -> None:
        self._spec = spec
        self._tensors = tensors
        self._model = Model(spec, tensors, rotations_of(spec, tensors, max_model_len))
        self._info = RunnerInfo(
            vocab_size=spec.vocab_size,
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            block_size_tokens=block_size_tokens,
            rows_max=rows_max,
            sequences_max=sequences_max,
            kernel_name="numpy",
        )
        # Slots hold NaN until they are written: whoever reads one that was not gets caught.
        heads, head_dim = spec.num_kv_heads, spec.head_dim
        shape = (2, spec.num_layers, num_blocks, heads, block_size_tokens, head_dim)  # keys, values
        self._kv = np.full(shape, np.nan, np.float32)

    @property
    def info(self) -> RunnerInfo:
        """The runner's fixed properties."""
        return self._info

    def execute(self, batch: StepBatch) -> StepResult:
        """Write KV for every row, sample the asked sequences."""
        check_batch(batch, self._info)
        hidden = self._forward(batch)
        last_rows = batch.row_starts[1:][batch.sampled] - 1
        all_logits = output_logits(self._spec, self._tensors, hidden[last_rows])
        chosen = [
            sample(
                logits,
                temperature=float(batch.temperature[row]),
                top_k=int(batch.top_k[row]),
                top_p=float(batch.top_p[row]),
                min_p=float(batch.min_p[row]),
                seed=int(batch.seed[row]),
                position=int(batch.position[row]),
                edits=edits_of(batch, row),
                mask=mask_of(batch, row),
                **filters_of(batch, row),
            )
            for row, logits in enumerate(all_logits)
        ]
        token_ids = np.array([token.token_id for token in chosen], np.int32)
        logprobs = np.array([token.logprob for token in chosen], np.float32)
        if batch.top_counts is None:
            return StepResult(token_ids, logprobs)
        top = [top_tokens(logits, int(batch.top_counts.max())) for logits in all_logits]
        top_ids = np.array([[token.token_id for token in row] for row in top], np.int32)
        top_logprobs = np.array([[token.logprob for token in row] for row in top], np.float32)
        return StepResult(token_ids, logprobs, top_ids, top_logprobs)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination)."""
        for source, destination in pairs:
            self._kv[:, :, destination] = self._kv[:, :, source]

    def export_blocks(self, block_ids: Sequence[int]) -> bytes:
        """The blocks' keys and values as bytes."""
        return self._kv[:, :, list(block_ids)].tobytes()

    def import_blocks(self, block_ids: Sequence[int], data: bytes) -> None:
        """Put exported blocks back; ValueError if the size is not that of these blocks."""
        chosen = list(block_ids)
        values = np.frombuffer(data, np.float32)
        self._kv[:, :, chosen] = values.reshape(self._kv[:, :, chosen].shape)

    def close(self) -> None:
        """Nothing to free."""

    def _forward(self, batch: StepBatch) -> Floats:
        """The hidden state after the last layer; (R, hidden_size)."""
        spec, tensors = self._spec, self._tensors
        positions, slots = self._places(batch)

        def attention(layer: int, queries: Floats, keys: Floats, values: Floats) -> Floats:
            for cache, rows in zip(self._kv[:, layer], (keys, values), strict=True):
                cache[slots[:, 0], :, slots[:, 1]] = rows
            return self._attend(batch, layer, queries)

        hidden = embed(spec, tensors, batch.token_ids, positions)
        for layer in range(spec.num_layers):
            hidden = run_layer(self._model, layer, hidden, positions, attention)
        return hidden

    def _attend(self, batch: StepBatch, layer: int, queries: Floats) -> Floats:
        """Each sequence's rows over its own blocks, which hold their keys and values already."""
        rule = attention_rule(self._spec, self._tensors, layer)
        mixed = np.zeros_like(queries)
        for index, context_len in enumerate(batch.context_lens.tolist()):
            rows = slice(batch.row_starts[index], batch.row_starts[index + 1])
            table = table_of(batch, index)
            keys, values = (
                gather_context(cache, table, context_len) for cache in self._kv[:, layer]
            )
            mixed[rows] = attend(queries[rows], keys, values, rule)
        return mixed

    def _places(self, batch: StepBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each row's position in its sequence (R,), and its block and slot in it (R, 2)."""
        size = self._info.block_size_tokens
        positions, slots = [], []
        for index, context_len in enumerate(batch.context_lens.tolist()):
            row_count = int(batch.row_starts[index + 1] - batch.row_starts[index])
            table = table_of(batch, index).tolist()
            for position in range(context_len - row_count, context_len):
                positions.append(position)
                slots.append((table[position // size], position % size))
        return np.array(positions, np.int64), np.array(slots, np.int64)


def edits_of(batch: StepBatch, row: int) -> Edits:
    """The edits of one sample."""
    if batch.edits is None:
        return no_edits
    ids, factors, addends = batch.edits.ids, batch.edits.factors, batch.edits.addends
    first, end = batch.edits.starts[row : row + 2].tolist()
    return ids[first:end], factors[first:end], addends[first:end]


def mask_of(batch: StepBatch, row: int) -> NDArray[np.uint32] | None:
    """The mask of one sample."""
    if batch.masks is None or batch.masks.rows[row] < 0:
        return None
    words: NDArray[np.uint32] = batch.masks.words[batch.masks.rows[row]]
    return words
