"""A model runner without a model: each token is a pure function of the history in its KV blocks.

Like a real one it stores in each KV slot something that depends on every token before it, and
reads all of it through the block table. A wrong table, a stale or shared-by-mistake block, a missed
row or another request's sampling parameters therefore change the tokens. `FakeModel.generate` says
what the tokens must be, from the prompt alone.

    slot[p]  = (token[p], link[p]),  link[p] = mix(link[p-1] + token[p] + golden * (p + 1))
    token    = mix(sum over p of mix(link[p] + token[p] * odd + p) + draw) mod vocabulary
    draw     = 0 if greedy, else a mix of seed, position and every sampling parameter

The link before the first token is 0, or a number of the LoRA adapter's content.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine.request import FinishReason, SamplingParams
from headrace.engine.runner import RunnerInfo, StepBatch, StepResult
from headrace.kernels.reference.sampler import golden_gamma, mask_64, mix64, not_finite_token_id
from headrace.sim.tiny_model import tiny_spec
from headrace.weights.lora.adapter import LoraAdapter

odd_multiplier = 0xD1342543DE82EF95


@dataclass(frozen=True, slots=True)
class FakeModel:
    """The function from a history to the next token."""

    vocab_size: int = 1000
    poison_token_id: int = -1  # a history that contains it gives logits that are not finite

    def next_token(
        self, history: Sequence[int], sampling: SamplingParams, position: int, start: int = 0
    ) -> int:
        """The token after `history`, computed from its first token on."""
        if self.poison_token_id in history:
            return not_finite_token_id
        link, total = start, 0
        for index, token in enumerate(history):
            link = next_link(link, token, index)
            total += mix64(link + token * odd_multiplier + index)
        return mix64(total + draw_of(sampling, position)) % self.vocab_size

    def generate(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        context_limit: int,
        start: int = 0,
    ) -> tuple[list[int], FinishReason]:
        """What an engine must answer to `prompt`, alone or among others."""
        history = list(prompt)
        stops = frozenset() if sampling.ignore_eos else sampling.stop_token_ids
        for position in range(min(sampling.max_tokens, context_limit - len(prompt))):
            token = self.next_token(history, sampling, position, start)
            if token == not_finite_token_id:
                return history[len(prompt) :], FinishReason.ERROR
            if token in stops and position >= sampling.min_tokens:
                return history[len(prompt) :], FinishReason.STOP
            history.append(token)
        return history[len(prompt) :], FinishReason.LENGTH


class FakeRunner:
    """Runs a `FakeModel` over simulated KV blocks and asserts that every batch makes sense."""

    def __init__(
        self,
        model: FakeModel,
        *,
        num_blocks: int = 64,
        block_size_tokens: int = 4,
        max_model_len: int = 128,
        rows_max: int = 64,
        sequences_max: int = 16,
        during_step: Callable[[StepBatch], None] | None = None,
        adapters_max: int = 0,
    ) -> None:
        self.model = model
        self.steps: int = 0
        self.rows: int = 0
        self.closed = False
        self._info = RunnerInfo(
            vocab_size=model.vocab_size,
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            block_size_tokens=block_size_tokens,
            rows_max=rows_max,
            sequences_max=sequences_max,
            kernel_name="fake",
            adapters_max=adapters_max,
        )
        self._during_step = during_step
        self.adapters: dict[int, LoraAdapter] = {}  # by slot
        self.spec = tiny_spec  # that adapters must fit; it computes nothing
        rng = np.random.default_rng(0)  # blocks start with garbage, as real memory does
        shape = (num_blocks, block_size_tokens)
        self._tokens = rng.integers(0, model.vocab_size, shape, dtype=np.int64)
        self._links = rng.integers(0, mask_64, shape, dtype=np.uint64, endpoint=True)

    @property
    def info(self) -> RunnerInfo:
        """The runner's fixed properties."""
        return self._info

    def execute(self, batch: StepBatch) -> StepResult:
        """Write every row into its slot, then sample."""
        assert not self.closed
        check_batch(batch, self._info)
        self.steps += 1
        self.rows += len(batch.token_ids)
        for index in range(len(batch.context_lens)):
            self._write_rows(batch, index)
        if self._during_step is not None:
            self._during_step(batch)
        token_ids = [self._sample(batch, row) for row in range(len(batch.sampled))]
        chosen, logprobs = np.array(token_ids, np.int32), np.zeros(len(token_ids), np.float32)
        if batch.top_counts is None:
            return StepResult(chosen, logprobs)
        ranks = np.arange(int(batch.top_counts.max()), dtype=np.int32)
        top_ids = (chosen[:, None] + ranks) % np.int32(self.model.vocab_size)
        top_logprobs = np.broadcast_to(-ranks.astype(np.float32), top_ids.shape)
        return StepResult(chosen, logprobs, top_ids, top_logprobs)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination)."""
        for source, destination in pairs:
            self._tokens[destination] = self._tokens[source]
            self._links[destination] = self._links[source]

    def export_blocks(self, block_ids: Sequence[int]) -> bytes:
        """The blocks' slots as bytes."""
        chosen = list(block_ids)
        return self._tokens[chosen].tobytes() + self._links[chosen].tobytes()

    def import_blocks(self, block_ids: Sequence[int], data: bytes) -> None:
        """Put exported slots back; ValueError if the size is not that of these blocks."""
        chosen = list(block_ids)
        shape = (2, len(chosen), self._info.block_size_tokens)
        slots = np.frombuffer(data, np.int64).reshape(shape)
        self._tokens[chosen] = slots[0]
        self._links[chosen] = slots[1].view(np.uint64)

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        """Keep an adapter."""
        assert 0 <= slot < self._info.adapters_max
        assert slot not in self.adapters, "the slot is in use"
        self.adapters[slot] = adapter

    def unload_adapter(self, slot: int) -> None:
        """Forget an adapter."""
        del self.adapters[slot]

    def close(self) -> None:
        """Refuse further steps."""
        self.closed = True

    def _write_rows(self, batch: StepBatch, index: int) -> None:
        first_row, end_row = batch.row_starts[index : index + 2].tolist()
        table = table_of(batch, index)
        first = int(batch.context_lens[index]) - (end_row - first_row)
        size = self._info.block_size_tokens
        link = self._start_of(batch, index)
        if first:
            link = int(self._links[table[(first - 1) // size], (first - 1) % size])
        for offset, token in enumerate(batch.token_ids[first_row:end_row].tolist()):
            position = first + offset
            link = next_link(link, token, position)
            self._tokens[table[position // size], position % size] = token
            self._links[table[position // size], position % size] = link

    def _start_of(self, batch: StepBatch, index: int) -> int:
        slot = -1 if batch.adapters is None else int(batch.adapters[index])
        return 0 if slot < 0 else start_of(self.adapters[slot])

    def _sample(self, batch: StepBatch, row: int) -> int:
        index = int(batch.sampled[row])
        table, context_len = table_of(batch, index), int(batch.context_lens[index])
        tokens = self._tokens[table].reshape(-1)[:context_len]
        links = self._links[table].reshape(-1)[:context_len]
        if (tokens == self.model.poison_token_id).any():
            return not_finite_token_id
        positions = np.arange(context_len, dtype=np.uint64)
        mixed = mix64_array(
            links + tokens.astype(np.uint64) * np.uint64(odd_multiplier) + positions
        )
        sampling = SamplingParams(
            temperature=float(batch.temperature[row]),
            top_k=int(batch.top_k[row]),
            top_p=float(batch.top_p[row]),
            min_p=float(batch.min_p[row]),
            seed=int(batch.seed[row]),
            **filters_of(batch, row),
        )
        total = int(mixed.sum(dtype=np.uint64)) + draw_of(sampling, int(batch.position[row]))
        return mix64(total) % self.model.vocab_size


def start_of(adapter: LoraAdapter) -> int:
    """The link before the first token of a request for an adapter."""
    return int(adapter.digest[:15], 16)


def next_link(link: int, token: int, position: int) -> int:
    """What a slot remembers of all that came before and its own token."""
    return mix64(link + token + golden_gamma * (position + 1))


def draw_of(sampling: SamplingParams, position: int) -> int:
    """The random part of a token; every parameter has a say, so that a mix-up shows."""
    if sampling.temperature == 0:
        return 0
    shape = np.array(
        [
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.typical_p,
            sampling.xtc_threshold,
            sampling.xtc_probability,
        ],
        np.float32,
    )
    mixed = sampling.seed + golden_gamma * (position + 1)
    for bits in [*shape.view(np.uint32).tolist(), sampling.top_k]:
        mixed = mix64(mixed + bits)
    return mixed


def filters_of(batch: StepBatch, row: int) -> dict[str, Any]:
    """The parameters of a sample that a batch has only where somebody asks for one."""
    filters = batch.filters
    if filters is None or (filters.typical_p[row] == 1 and filters.xtc_probability[row] == 0):
        return {}
    return {
        "typical_p": float(filters.typical_p[row]),
        "xtc_threshold": float(filters.xtc_threshold[row]),
        "xtc_probability": float(filters.xtc_probability[row]),
    }


def mix64_array(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix64` of each element."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


def table_of(batch: StepBatch, index: int) -> NDArray[np.int32]:
    """One sequence's block table."""
    return batch.block_ids[batch.block_starts[index] : batch.block_starts[index + 1]]


def check_batch(batch: StepBatch, info: RunnerInfo) -> None:
    """Assert that a batch keeps the runner protocol's promises and the runner's limits."""
    count = len(batch.context_lens)
    assert 0 < len(batch.token_ids) <= info.rows_max
    assert count <= info.sequences_max
    assert len(batch.row_starts) == len(batch.block_starts) == count + 1
    assert batch.row_starts[0] == batch.block_starts[0] == 0
    assert batch.row_starts[-1] == len(batch.token_ids)
    assert batch.block_starts[-1] == len(batch.block_ids)
    assert (np.diff(batch.row_starts) > 0).all(), "a sequence without rows"
    assert ((batch.token_ids >= 0) & (batch.token_ids < info.vocab_size)).all()
    assert ((batch.block_ids >= 0) & (batch.block_ids < info.num_blocks)).all()
    assert (np.diff(batch.sampled) > 0).all(), "sampled sequences are not ascending"
    per_sample = (batch.temperature, batch.top_k, batch.top_p, batch.min_p, batch.seed)
    assert all(len(array) == len(batch.sampled) for array in (*per_sample, batch.position))
    check_writes(batch, info)


def check_writes(batch: StepBatch, info: RunnerInfo) -> None:
    """Assert that each sequence's new rows land in blocks that no other sequence sees.

    Parts with the same table whose rows follow each other are one sequence's."""
    size = info.block_size_tokens
    row_counts = np.diff(batch.row_starts)
    seen_by: dict[int, int] = {}
    writes: list[tuple[list[int], int, int]] = []  # table, first row's position, end
    for index, context_len in enumerate(batch.context_lens.tolist()):
        table = table_of(batch, index).tolist()
        first = context_len - int(row_counts[index])
        assert len(table) * size >= context_len, "a row without a block"
        assert 0 <= first < context_len <= info.max_model_len
        if writes and writes[-1][0] == table and writes[-1][2] == first:
            writes[-1] = (table, writes[-1][1], context_len)
            continue
        writes.append((table, first, context_len))
        for block in table:
            seen_by[block] = seen_by.get(block, 0) + 1
    for table, first, end in writes:
        written = table[first // size : -(-end // size)]
        assert all(seen_by[block] == 1 for block in written), "a write into a shared block"
