"""A model with its matrices in another type, as a GGUF file: what `headrace quantize` does.

Norms, biases, routers and tables of positions stay float32. The output matrix, or the embedding
that stands for it, keeps more bits. A row that is no whole number of blocks gets the nearest type
whose blocks fit. One stretch of rows is in memory at a time, or one tensor that its file
stores in another way.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

from headrace.base.errors import ConfigurationError
from headrace.kernels.reference.dequantize import converters as readable
from headrace.kernels.reference.dequantize import dequantize
from headrace.kernels.reference.quantize import quantize
from headrace.weights.gguf_writer import TensorPlan, write_gguf
from headrace.weights.importance import Floats, Importance
from headrace.weights.model_file import ModelFile
from headrace.weights.progress import Progress
from headrace.weights.soundness import check_numbers
from headrace.weights.tensor import Tensor, TensorType, block_layouts, bytes_of

values_at_once = 1 << 20
# llama.cpp's number of each kind of file.
file_types: Mapping[TensorType, int] = {
    **{TensorType.F32: 0, TensorType.MXFP4: 38},
    **{TensorType.F16: 1, TensorType.Q4_0: 2, TensorType.Q4_1: 3, TensorType.Q8_0: 7},
    **{TensorType.Q5_0: 8, TensorType.Q5_1: 9, TensorType.Q2_K: 10, TensorType.Q3_K: 12},
    **{TensorType.Q4_K: 15, TensorType.Q5_K: 17, TensorType.Q6_K: 18, TensorType.IQ4_NL: 25},
    **{TensorType.IQ4_XS: 30, TensorType.BF16: 32},
}
smaller_blocks = {
    **{TensorType.Q2_K: TensorType.Q4_0, TensorType.Q3_K: TensorType.Q4_0},
    **{TensorType.Q4_K: TensorType.Q5_0, TensorType.Q5_K: TensorType.Q5_1},
    **{TensorType.Q6_K: TensorType.Q8_0, TensorType.IQ4_XS: TensorType.IQ4_NL},
}
kept_names = ("ffn_gate_inp", "position_embd", "token_types", "rope_factors", "rope_freqs")
expert_pattern = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.(weight|bias)")
left_out_keys = ("split.", "general.alignment", "general.file_type")


def quantize_model(
    file: ModelFile,
    path: Path,
    target: TensorType,
    progress: Progress,
    importance: Importance | None = None,
    *,
    name: str = "",
) -> None:
    """Write the model to `path`; ConfigurationError for a type that is not written.

    With an `importance` errors count by how much their inputs matter. ModelFileError names a tensor
    whose numbers are none.

    Cost: every weight is read once; a K type takes about a minute for 100 million of them."""
    if target not in file_types:
        names = ", ".join(kind.name for kind in file_types)
        raise ConfigurationError(f"{target.name} is not written; choose one of {names}.")
    tied = "output.weight" not in file.tensors
    plans = [
        _plan(parts, _type_of(parts[0], target, tied=tied), progress, importance)
        for parts in _grouped(file.tensors)
    ]
    metadata = {
        key: value
        for key, value in file.metadata.items()
        if value is not None and not key.startswith(left_out_keys)
    }
    metadata |= {"general.file_type": file_types[target], "general.quantization_version": 2}
    metadata.setdefault("general.name", name or file.path.stem)
    progress.start(sum(plan.byte_count for plan in plans), f"{target.name} of {file.path.name}")
    try:
        write_gguf(path, metadata, plans)
    finally:
        progress.finish()


def _grouped(tensors: Mapping[str, Tensor]) -> list[list[Tensor]]:
    """The tensors to write; a layer's experts are one tensor, made of parts in their order."""
    groups: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        match = expert_pattern.fullmatch(name)
        if match is None:
            groups[name] = {0: tensor}
        else:
            joined = f"{match[1]}_exps.{match[3]}"
            groups.setdefault(joined, {})[int(match[2])] = replace(tensor, name=joined)
    return [[parts[index] for index in sorted(parts)] for parts in groups.values()]


def _type_of(tensor: Tensor, target: TensorType, *, tied: bool) -> TensorType:
    stem = tensor.name.rpartition(".")[0].rpartition(".")[2]
    if len(tensor.shape) < 2 or tensor.name.endswith(".bias") or stem.startswith(kept_names):
        return TensorType.F32
    if int(tensor.type) not in readable:
        raise ConfigurationError(f"tensor {tensor.name}: {tensor.type.name} cannot be read here.")
    output = stem == "output" or (stem == "token_embd" and tied)
    floats = (TensorType.F32, TensorType.F16, TensorType.BF16, TensorType.Q8_0)
    chosen = TensorType.Q6_K if output and target not in floats else target
    for kind in (chosen, smaller_blocks.get(chosen, TensorType.F16)):
        if tensor.shape[-1] % block_layouts[kind].values == 0:
            return kind
    return TensorType.F16


def _plan(
    parts: list[Tensor], target: TensorType, progress: Progress, importance: Importance | None
) -> TensorPlan:
    first = parts[0]
    shape = first.shape if len(parts) == 1 else (len(parts), *first.shape)
    known = None if importance is None else importance.of(first.name)
    if known is not None and known.shape[-1] != shape[-1]:
        raise ConfigurationError(
            f"tensor {first.name} has {shape[-1]} inputs, and the importance is of "
            f"{known.shape[-1]}; it was measured on another model."
        )

    def pieces() -> Iterator[bytes]:
        for index, part in enumerate(parts):
            check_numbers(part)
            own = known[index] if known is not None and len(parts) > 1 < known.ndim else known
            for data in _converted(part, target, own):
                progress.advance(len(data))
                yield data

    return TensorPlan(first.name, target, shape, pieces)


def _converted(tensor: Tensor, target: TensorType, importance: Floats | None) -> Iterator[bytes]:
    """A tensor's bytes in another type, some rows at a time."""
    whole = tensor.data
    for first, count, own in _stretches(tensor, importance):
        data = whole[first * _row_bytes(tensor) : (first + count) * _row_bytes(tensor)]
        if tensor.type is target:
            yield data.tobytes()
        else:
            values = dequantize(int(tensor.type), data, (count, tensor.shape[-1]))
            yield quantize(int(target), values, own).tobytes()


def _row_bytes(tensor: Tensor) -> int:
    return bytes_of(tensor.type, tensor.shape[-1])


def _stretches(
    tensor: Tensor, importance: Floats | None
) -> Iterator[tuple[int, int, Floats | None]]:
    """First row and count of each stretch, with the importance of its inputs; no stretch has rows
    of two experts."""
    step = max(1, values_at_once // tensor.shape[-1])
    outputs = tensor.shape[-2] if len(tensor.shape) > 1 else 1
    for expert in range(prod(tensor.shape[:-1]) // outputs):
        own = importance[expert] if importance is not None and importance.ndim > 1 else importance
        for row in range(0, outputs, step):
            yield expert * outputs + row, min(step, outputs - row), own
