"""The CPU model runner: hands step batches to the compiled transformer with little Python between.

See csrc/model/transformer.hpp for what a step does.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ConfigurationError, ModelFileError
from headrace.engine.placement import Device, anywhere
from headrace.engine.ranks import RankPlace, alone, check_ranks
from headrace.engine.runner import (
    ActivationBits,
    RunnerInfo,
    StepBatch,
    StepResult,
    WeightsCheck,
)
from headrace.kernels import CpuTransformer, block_size_tokens, default_thread_count, isa_limit
from headrace.kernels.rotation import Rotation, rotations_of
from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.layout import divisor_names, runner_tensors
from headrace.weights.lora.adapter import LoraAdapter, rank_max_default, targets
from headrace.weights.tensor import Bytes, Tensor, TensorType

threads_max = 256

KvCacheType = Literal["f16", "q8"]  # q8: int8 with a scale a token and head, half the memory


class TensorSource(Protocol):
    """What the runner needs of a model file."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor by its GGUF name."""
        ...


class CpuRunner:
    """Holds a model's packed weights and KV blocks in this process and runs its steps.

    The weights are copied out of `file`, which may be closed afterwards, or mapped from
    `packed_path`, where the first load leaves them (weights/packed_cache.py). Of several ranks, the
    first is asked and the others `serve`. The spec's layers name `devices` by their places."""

    def __init__(
        self,
        file: TensorSource,
        spec: ArchitectureSpec,
        *,
        kv_tokens: int,
        rows_max: int,
        sequences_max: int,
        threads: int | None = None,
        kv_cache_dtype: KvCacheType = "f16",
        activation_bits: ActivationBits = 16,  # engines pass theirs: activation_bits_default
        adapters_max: int = 0,
        adapter_rank_max: int = rank_max_default,
        packed_path: Path | None = None,
        place: RankPlace = alone,
        devices: Sequence[Device] = (anywhere,),
    ) -> None:
        check_ranks(spec, place.ranks)
        thread_count = default_thread_count() if threads is None else threads
        if not 1 <= thread_count <= threads_max:
            raise ConfigurationError(
                f"threads is {thread_count}: give 1 to {threads_max}", param="threads"
            )
        num_blocks = kv_tokens // block_size_tokens
        if num_blocks < 1:
            raise ConfigurationError(
                f"kv_tokens is {kv_tokens}: give at least {block_size_tokens}", param="kv_tokens"
            )
        self._transformer: CpuTransformer | None = load_transformer(
            file,
            spec,
            num_blocks=num_blocks,
            rows_max=rows_max,
            sequences_max=sequences_max,
            threads=thread_count,
            kv_cache_dtype=kv_cache_dtype,
            activation_bits=activation_bits,
            adapters_max=adapters_max,
            adapter_rank_max=adapter_rank_max,
            packed_path=packed_path,
            place=place,
            devices=devices,
        )
        self._spec = spec
        self._others = place.others
        self._info = RunnerInfo(
            vocab_size=spec.vocab_size,
            max_model_len=self._transformer.max_model_len,
            num_blocks=num_blocks,
            block_size_tokens=block_size_tokens,
            rows_max=rows_max,
            sequences_max=sequences_max,
            kernel_name=self._transformer.kernel_name,
            adapters_max=adapters_max,
            weight_bytes=sum(self._transformer.device_weight_bytes),
            kv_token_bytes=self._transformer.kv_bytes // (num_blocks * block_size_tokens),
            activation_bits=self._transformer.activation_bits,
        )

    @property
    def info(self) -> RunnerInfo:
        """The runner's fixed properties."""
        return self._info

    @property
    def spec(self) -> ArchitectureSpec:
        """The model's architecture."""
        return self._spec

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights: what a decode step of one sequence reads, or more."""
        return sum(self.device_weight_bytes)

    @property
    def device_weight_bytes(self) -> list[int]:
        """Bytes of the packed weights on each device."""
        return self._open().device_weight_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole KV cache."""
        return self._open().kv_bytes

    def execute(self, batch: StepBatch) -> StepResult:
        """Run one step; ValueError if an index in `batch` is out of its range."""
        return self._execute(batch, None)

    def execute_logits(self, batch: StepBatch) -> tuple[StepResult, NDArray[np.float32]]:
        """Run one step and also hand out the sampled rows' logits, (N, vocab_size)."""
        logits = np.empty((len(batch.sampled), self._info.vocab_size), np.float32)
        return self._execute(batch, logits), logits

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks (source, destination), in order."""
        self._open().copy_blocks(list(pairs))

    def export_blocks(self, block_ids: Sequence[int]) -> bytes:
        """The KV of these blocks with a header that says their layout."""
        return self._open().export_blocks(list(block_ids))

    def import_blocks(self, block_ids: Sequence[int], data: bytes) -> None:
        """Put exported KV back; ValueError if it is of another layout or count."""
        self._open().import_blocks(list(block_ids), data)

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        """Pack an adapter into a slot, of every rank; steps of others go on meanwhile.

        ModelFileError if it does not fit the model, ValueError if there is no such slot, SetupError
        if another rank could not."""
        parts = [
            (part.layer, targets.index(part.target), part.scale, _read(part.down), _read(part.up))
            for part in adapter.parts
        ]
        if self._others is not None:  # they have it before a step can name it
            self._others.load_adapter(slot, adapter)
        try:
            self._open().load_adapter(slot, parts)
        except BaseException:
            if self._others is not None:
                self._others.unload_adapter(slot)
            raise

    def unload_adapter(self, slot: int) -> None:
        """Free a slot, of every rank."""
        if self._others is not None:
            self._others.unload_adapter(slot)
        self._open().unload_adapter(slot)

    def check_weights(self, byte_count: int) -> WeightsCheck:
        """Compare so many more bytes of mapped weights with what was packed; steps go on meanwhile.

        For one thread. A damaged file is removed, so that the next load packs anew; weights that
        this load packed are sound."""
        return self._open().check_packed(byte_count)

    def discard_kv(self) -> None:
        """Lose the content of all blocks, and give their memory back until it is used."""
        self._open().discard_kv()

    def serve(self) -> None:
        """Do this rank's part of what rank 0 is asked, until that is closed."""
        self._open().serve()

    def close(self) -> None:
        """End the threads and free weights and KV; idempotent."""
        self._transformer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> CpuTransformer:
        assert self._transformer is not None, "the runner is closed"
        return self._transformer

    def _execute(self, batch: StepBatch, logits: NDArray[np.float32] | None) -> StepResult:
        token_ids = np.empty(len(batch.sampled), np.int32)
        logprobs = np.empty(len(batch.sampled), np.float32)
        edits, masks, top = batch.edits, batch.masks, _top_outputs(batch)
        rare = batch.filters
        self._open().execute(
            batch.token_ids,
            batch.row_starts,
            batch.context_lens,
            batch.block_ids,
            batch.block_starts,
            batch.sampled,
            batch.temperature,
            batch.top_k,
            batch.top_p,
            batch.min_p,
            batch.seed,
            batch.position,
            token_ids,
            logprobs,
            logits,
            None if edits is None else (edits.starts, edits.ids, edits.factors, edits.addends),
            None if masks is None else (masks.rows, masks.words),
            top,
            adapters=batch.adapters,
            filters=None
            if rare is None
            else (rare.typical_p, rare.xtc_threshold, rare.xtc_probability),
        )
        if top is None:
            return StepResult(token_ids, logprobs)
        return StepResult(token_ids, logprobs, top[1], top[2])


def _read(tensor: Tensor) -> tuple[int, tuple[int, ...], Bytes]:
    return int(tensor.type), tensor.shape, tensor.data


def _unread(tensor: Tensor) -> tuple[int, tuple[int, ...], Bytes | Callable[[], Bytes]]:
    """Bytes that the file stores otherwise are made one tensor at a time, unless packed already."""
    return int(tensor.type), tensor.shape, tensor.source


def _top_outputs(
    batch: StepBatch,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]] | None:
    """How many top tokens each sample lists, and where they and their log-probabilities go."""
    if batch.top_counts is None:
        return None
    shape = (len(batch.top_counts), int(batch.top_counts.max()))
    return batch.top_counts, np.zeros(shape, np.int32), np.zeros(shape, np.float32)


def load_transformer(
    file: TensorSource,
    spec: ArchitectureSpec,
    *,
    num_blocks: int,
    rows_max: int,
    sequences_max: int,
    threads: int,
    kv_cache_dtype: KvCacheType,
    activation_bits: ActivationBits = 16,
    adapters_max: int = 0,
    adapter_rank_max: int = 0,
    packed_path: Path | None = None,
    place: RankPlace = alone,
    devices: Sequence[Device] = (anywhere,),
) -> CpuTransformer:
    """A model's weights packed for this CPU, with so many blocks of KV."""
    tensors = runner_tensors(spec, file.tensors)
    context = min(spec.context_length, num_blocks * block_size_tokens)
    rotations = _rotations(spec, tensors, context)
    return CpuTransformer(
        spec=spec,
        layers=[
            (
                layer.window_tokens,
                layer.rotation if rotations else -1,
                layer.device,
                layer.experts_device,
            )
            for layer in (spec.layer(index) for index in range(spec.num_layers))
        ],
        rotations=[(rotation.frequencies.tolist(), rotation.magnitude) for rotation in rotations],
        tensors={name: _unread(tensor) for name, tensor in tensors.items()},
        num_blocks=num_blocks,
        rows_max=rows_max,
        sequences_max=sequences_max,
        devices=[(device.cores, team_size(device, threads)) for device in devices],
        isa_limit=isa_limit(),
        kv_type=kv_cache_dtype,
        activation_bits=activation_bits,
        adapter_slots=adapters_max,
        adapter_rank_max=adapter_rank_max,
        packed_path="" if packed_path is None else str(packed_path),
        rank=place.rank,
        ranks=place.ranks,
        group_descriptor=place.descriptor,
    )


def team_size(device: Device, threads: int) -> int:
    """The threads that compute on a device: one a core at most, where it says its cores."""
    return min(threads, len(device.cores)) if device.cores else threads


def _rotations(
    spec: ArchitectureSpec, tensors: Mapping[str, Tensor], context_length: int
) -> tuple[Rotation, ...]:
    divisors: dict[str, NDArray[np.float32]] = {}
    for name in divisor_names:
        if name not in tensors:
            continue
        tensor = tensors[name]
        values = tensor.data.view(np.float32) if tensor.type is TensorType.F32 else None
        if values is None or len(values) != spec.rope_dimensions // 2 or not (values > 0).all():
            raise ModelFileError(
                f"tensor {name} must have {spec.rope_dimensions // 2} positive F32 values; the "
                "model file is corrupt."
            )
        divisors[name] = values
    return rotations_of(spec, divisors, context_length)
