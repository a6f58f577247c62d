"""What a quantization scheme makes of stored tensors: weights, and how each of them is kept.

A weight of small integers under scales of groups is kept exactly where a block type of ours holds
the same numbers; all else is rounded to Q8_0, whose steps are 1/127 of the largest of 32 weights.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ModelFileError
from headrace.kernels.reference.quantize import quantize, store_q4_0, store_q5_0, store_q8_0
from headrace.weights.huggingface.safetensors_file import StoredTensor
from headrace.weights.tensor import Bytes, Tensor, TensorType

Floats = NDArray[np.float32]
Integers = NDArray[np.int16]
block_values = 32
# The smallest and largest integers that a type holds under one scale; the first that fits is taken.
exact_types = ((TensorType.Q4_0, -8, 7), (TensorType.Q5_0, -16, 15), (TensorType.Q8_0, -128, 127))
half_max = 65504.0


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Weights under Hugging Face's names, and a count of how they are kept."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    kept: Counter[str] = field(default_factory=Counter)

    def add(self, tensor: Tensor, *, exactly: bool) -> None:
        """Take a weight in."""
        self.tensors[tensor.name] = tensor
        self.kept[f"{tensor.type.name}, {'exactly' if exactly else 'rounded'}"] += 1

    def note(self, method: str) -> str:
        """One line for people."""
        kinds = "; ".join(f"{count} as {kind}" for kind, count in sorted(self.kept.items()))
        return f"{method} weights: {kinds or 'none'}"


@dataclass(frozen=True, slots=True)
class IntegerMatrix:
    """Weights of scale * (code - zero), with a scale and a zero for each group of inputs.

    Arrays are made when they are asked for."""

    name: str
    outputs: int
    inputs: int
    code_range: tuple[int, int]
    codes: Callable[[], Integers]  # (outputs, inputs)
    group_count: int  # of one output
    scales: Callable[[], Floats]  # (outputs, group_count)
    zeros: Callable[[], Integers]  # (outputs or 1, group_count or 1)
    groups: NDArray[np.int64] | None = None  # (inputs,) where they are not in order

    def tensor(self, unpacked: Unpacked) -> None:
        """Add the matrix in the type that suits it best."""
        shape = (self.outputs, self.inputs)
        scales = self.scales()
        kind = self._exact_type(float(np.abs(scales).max()))
        if kind is None:
            add_rounded(unpacked, self.name, shape, self.values)
            return
        blocks = Tensor(self.name, kind, shape, lambda: self._stored(kind))
        exactly = bool((scales.astype(np.float16).astype(np.float32) == scales).all())
        unpacked.add(blocks, exactly=exactly)

    def values(self) -> Floats:
        """The weights themselves, (outputs, inputs)."""
        groups = self._group_of_input()
        return self._centred(groups).astype(np.float32) * self.scales()[:, groups]

    def _exact_type(self, largest_scale: float) -> TensorType | None:
        zeros = self.zeros()
        least = self.code_range[0] - int(zeros.max())
        most = self.code_range[1] - int(zeros.min())
        group_inputs, rest = divmod(self.inputs, self.group_count)
        in_blocks = self.inputs % block_values == 0 and (
            self.group_count == 1 or (group_inputs % block_values == 0 and not rest)
        )
        if self.groups is not None or not in_blocks or largest_scale > half_max:
            return None
        for kind, lowest, highest in exact_types:
            if lowest <= least and most <= highest:
                return kind
        return None

    def _group_of_input(self) -> NDArray[np.int64]:
        if self.groups is not None:
            return self.groups
        return np.arange(self.inputs) // -(-self.inputs // self.group_count)

    def _centred(self, groups: NDArray[np.int64]) -> Integers:
        """Codes less their zeros, (outputs, inputs)."""
        zeros = np.broadcast_to(self.zeros(), (self.outputs, self.group_count))
        return self.codes() - zeros[:, groups]

    def _stored(self, kind: TensorType) -> Bytes:
        groups = self._group_of_input()
        centred = self._centred(groups).reshape(-1, block_values)
        block_groups = groups[::block_values]
        steps = self.scales()[:, block_groups].reshape(-1, 1)
        match kind:
            case TensorType.Q4_0:
                blocks = store_q4_0(steps, (centred + 8).astype(np.uint8))
            case TensorType.Q5_0:
                blocks = store_q5_0(steps, (centred + 16).astype(np.uint8))
            case _:
                blocks = store_q8_0(steps, centred.astype(np.int8))
        return blocks.reshape(-1)


def add_rounded(
    unpacked: Unpacked, name: str, shape: tuple[int, ...], values: Callable[[], Floats]
) -> None:
    """Add a weight that no type of ours holds exactly, in the nearest one of eight bits or more."""
    kind = TensorType.F16 if shape[-1] % block_values else TensorType.Q8_0
    unpacked.add(Tensor(name, kind, shape, lambda: quantize(kind, values())), exactly=False)


def floats_of(stored: StoredTensor) -> Floats:
    """Scales, of any float type, in their shape."""
    match stored.dtype:
        case "F32":
            values = stored.data.view(np.float32)
        case "F16":
            values = stored.data.view(np.float16).astype(np.float32)
        case "BF16":
            values = (stored.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        case _:
            raise wrong_part(stored, "is not F32, F16 or BF16")
    if not np.isfinite(values).all():
        raise wrong_part(stored, "has a scale that is not finite")
    return values.reshape(stored.shape)


def wrong_part(stored: StoredTensor, problem: str) -> ModelFileError:
    """What to raise for a part that does not fit the others."""
    return ModelFileError(
        f"tensor {stored.name} {problem}; the model file is corrupt, or was written in a way that "
        "headrace does not read.",
        field=f"tensor {stored.name}",
    )
