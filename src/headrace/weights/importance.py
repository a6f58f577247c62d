"""How much each input of a matrix matters: the sum of its squares over a text (an "imatrix").

It comes from a text, which the float reference reads layer by layer, so that one layer's weights
are in memory as floats at a time; or from a file that llama.cpp's tool wrote: its older binary one,
or its GGUF one (`NAME.in_sum2` and `NAME.counts`).
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ModelFileError
from headrace.kernels.reference.attention_families import attend
from headrace.kernels.reference.dequantize import dequantize
from headrace.kernels.reference.transformer import (
    Model,
    attention_rule,
    embed,
    norm,
    run_layer,
)
from headrace.kernels.reference.watched import WatchedTensors
from headrace.kernels.rotation import rotations_of
from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.gguf import magic, open_gguf
from headrace.weights.layout import runner_tensors
from headrace.weights.model_file import ModelFile
from headrace.weights.progress import Progress
from headrace.weights.tensor import Tensor

Floats = NDArray[np.float32]

chunk_tokens = 256  # read as texts of their own, so that attention's cost stays small
entries_max = 100_000
name_bytes_max = 256
inputs_max = 1 << 22
fused_parts = {"attn_qkv": "attn_q"}  # one of the parts, which have the same inputs


@dataclass(frozen=True, slots=True)
class Importance:
    """Numbers for the inputs of matrices by name, without ".weight"; their scale means nothing."""

    by_name: Mapping[str, Floats]  # (inputs,), or (experts, inputs) for experts in one tensor

    def of(self, name: str) -> Floats | None:
        """For a tensor of a file, (inputs,) or (experts, inputs); None if the text did not tell.

        Names of experts by themselves and of all in one tensor are both understood."""
        stem = name.removesuffix(".weight")
        prefix, _, part = stem.rpartition(".")
        for known in (stem, f"{prefix}.{fused_parts.get(part, part)}"):
            if known in self.by_name:
                return _positive(self.by_name[known])
        if part.isdigit():  # one expert of a file that has them all in one
            whole = self.by_name.get(f"{prefix}_exps")
            if whole is None or whole.ndim < 2 or int(part) >= len(whole):
                return None
            one: Floats = whole[int(part)]
            return _positive(one)
        return self._of_all_experts(stem) if part.endswith("_exps") else None

    def _of_all_experts(self, stem: str) -> Floats | None:
        prefix = f"{stem.removesuffix('_exps')}."
        each = [name for name in self.by_name if name.startswith(prefix)]
        if not each:
            return None
        shape = self.by_name[each[0]].shape
        count = 1 + max(int(name.removeprefix(prefix)) for name in each)
        nothing = np.zeros(shape, np.float32)
        return np.stack(
            [_positive(self.by_name.get(f"{prefix}{expert}", nothing)) for expert in range(count)]
        )


def _positive(numbers: Floats) -> Floats:
    """No input counts for nothing; an expert that no token chose has all inputs alike."""
    mean = numbers.mean(axis=-1, keepdims=True)
    mean = np.where(mean > 0, mean, 1)
    return np.asarray(np.maximum(numbers / mean, 1e-4), np.float32)


def measure_importance(
    file: ModelFile, spec: ArchitectureSpec, tokens: Sequence[int], progress: Progress
) -> Importance:
    """Let the model read a text and note what its matrices take in.

    Cost: a float forward pass; two operations a weight and token, on one core for each BLAS
    thread."""
    tensors = runner_tensors(spec, file.tensors)
    outer = {name: _floats(tensor) for name, tensor in tensors.items() if _is_outer(name)}
    chunks = [
        np.asarray(tokens[first : first + chunk_tokens])
        for first in range(0, len(tokens), chunk_tokens)
    ]
    states = [embed(spec, outer, chunk, np.arange(len(chunk))) for chunk in chunks]
    rotations = rotations_of(spec, outer, spec.context_length)
    sums: dict[str, Floats] = {}
    progress.start(spec.num_layers, "reading the text")
    try:
        for layer in range(spec.num_layers):
            watched = WatchedTensors(_layer_tensors(tensors, layer))
            model = Model(spec, watched, rotations)
            states = [_run_chunk(model, layer, state) for state in states]
            sums |= {name: total.astype(np.float32) for name, total in watched.square_sums.items()}
            progress.advance(1)
    finally:
        progress.finish()
    if not spec.encoder:
        normed = np.concatenate([norm(spec, outer, "output_norm", state) for state in states])
        name = "token_embd" if spec.tied_output else "output"
        sums[name] = np.sum(normed.astype(np.float64) ** 2, axis=0).astype(np.float32)
    return Importance(sums)


def _is_outer(name: str) -> bool:
    return not name.startswith("blk.")


def _layer_tensors(tensors: Mapping[str, Tensor], layer: int) -> dict[str, Floats]:
    prefix = f"blk.{layer}."
    return {name: _floats(tensor) for name, tensor in tensors.items() if name.startswith(prefix)}


def _floats(tensor: Tensor) -> Floats:
    return dequantize(int(tensor.type), np.asarray(tensor.data), tensor.shape)


def _run_chunk(model: Model, layer: int, state: Floats) -> Floats:
    def attention(index: int, queries: Floats, keys: Floats, values: Floats) -> Floats:
        return attend(queries, keys, values, attention_rule(model.spec, model.tensors, index))

    positions = np.arange(len(state), dtype=np.int64)
    return run_layer(model, layer, state, positions, attention)


def read_importance(path: Path) -> Importance | None:
    """The importance in a file of llama.cpp's tool; None if it is no such file.

    ModelFileError if it begins as one and is damaged."""
    with path.open("rb") as file:
        start = file.read(4)
    if start == magic.to_bytes(4, "little"):
        return _read_gguf(path)
    if path.suffix == ".dat":
        return Importance(dict(_read_entries(path, path.read_bytes())))
    return None


def _read_gguf(path: Path) -> Importance:
    found: dict[str, Floats] = {}
    with open_gguf(path) as file:
        for name, tensor in file.tensors.items():
            stem, _, kind = name.rpartition(".")
            if kind != "in_sum2":
                continue
            sums = _floats(tensor)
            whole = len(sums.shape) < 2 or sums.shape[0] == 1
            found[stem.removesuffix(".weight")] = sums.reshape(-1) if whole else sums
    if not found:
        _fail(path, "in_sum2", "no tensor of it is one; it is no importance matrix")
    return Importance(found)


def _read_entries(path: Path, data: bytes) -> Iterator[tuple[str, Floats]]:
    """The older file: a count, then for each entry its name, calls, and sums."""
    (count,) = _integers(path, data, 0, 1)
    offset = 4
    if not 1 <= count <= entries_max:
        _fail(path, "entries", f"{count} of them")
    for _ in range(count):
        (length,) = _integers(path, data, offset, 1)
        if not 1 <= length <= name_bytes_max or offset + 4 + length > len(data):
            _fail(path, "name", f"of {length} bytes")
        name = data[offset + 4 : offset + 4 + length].decode(errors="replace")
        offset += 4 + length
        _, values = _integers(path, data, offset, 2)
        offset += 8
        if not 1 <= values <= inputs_max or offset + 4 * values > len(data):
            _fail(path, name, f"{values} numbers in a file of {len(data)} bytes")
        sums = np.frombuffer(data, "<f4", values, offset).astype(np.float32)
        if not (np.isfinite(sums).all() and (sums >= 0).all()):
            _fail(path, name, "a number is negative or not finite")
        yield name.removesuffix(".weight"), sums
        offset += 4 * values


def _integers(path: Path, data: bytes, offset: int, count: int) -> tuple[int, ...]:
    if offset + 4 * count > len(data):
        _fail(path, "entries", "the file is cut short")
    return struct.unpack_from(f"<{count}i", data, offset)


def _fail(path: Path, field: str, problem: str) -> NoReturn:
    raise ModelFileError(f"{path}: {field}: {problem}.", file=str(path), field=field)
