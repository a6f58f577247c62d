"""Whether a model's numbers are numbers: no NaN, no infinity, no scale that no model has.

Codes of quantized weights are integers, so that their scales alone decide: those are read, and the
rest is not. A file that was damaged where nobody hashed it, or converted wrongly, is refused by the
name of its tensor before it answers with noise.
"""

from collections.abc import Mapping
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ModelFileError
from headrace.weights.tensor import Tensor, TensorType, block_layouts

value_max = 1e6  # of a weight, a norm or a scale: far past any model's
values_at_once = 1 << 22
# Where a block has its half-precision scales and minimums.
half_offsets: Mapping[TensorType, tuple[int, ...]] = {
    **dict.fromkeys((TensorType.Q4_0, TensorType.Q5_0, TensorType.Q8_0), (0,)),
    **dict.fromkeys((TensorType.IQ4_NL, TensorType.IQ4_XS), (0,)),
    **dict.fromkeys((TensorType.Q4_1, TensorType.Q5_1), (0, 2)),
    **dict.fromkeys((TensorType.Q4_K, TensorType.Q5_K), (0, 2)),
    **{TensorType.Q2_K: (80, 82), TensorType.Q3_K: (108,), TensorType.Q6_K: (208,)},
}
exponent_nan, exponent_of_one = 255, 127  # MXFP4's


def check_weights(tensors: Mapping[str, Tensor]) -> list[str]:
    """ModelFileError names the first tensor with a number that is none; a list of what is odd.

    Cost: floats are read whole, of quantized weights the scales."""
    remarks = []
    for tensor in tensors.values():
        if check_numbers(tensor) and len(tensor.shape) > 1:
            remarks.append(f"tensor {tensor.name} is all zeros")
    return remarks


def check_numbers(tensor: Tensor) -> bool:
    """Whether every number is zero; ModelFileError if one is not finite or not plausible."""
    data = tensor.data
    match tensor.type:
        case TensorType.F32:
            return _check_stretches(tensor, data.view("<f4"))
        case TensorType.F16:
            return _check_stretches(tensor, data.view("<f2"))
        case TensorType.BF16:
            return _check_stretches(tensor, data.view("<u2"))
        case TensorType.MXFP4:
            exponents = data.reshape(-1, block_layouts[tensor.type].bytes)[:, 0]
            largest = int(exponents.max(initial=0))
            if largest == exponent_nan:
                _refuse(tensor, "has a scale that is not a number")
            _check_size(tensor, 2.0 ** (largest - exponent_of_one), "a scale")
            return False
        case _:
            return _check_halves(tensor, data)


def _check_stretches(tensor: Tensor, numbers: NDArray[np.generic]) -> bool:
    zero = True
    for first in range(0, len(numbers), values_at_once):
        part = numbers[first : first + values_at_once]
        if tensor.type is TensorType.BF16:
            part = (part.astype(np.uint32) << 16).view(np.float32)
        zero &= not _largest(tensor, part, "a value")
    return zero


def _check_halves(tensor: Tensor, data: NDArray[np.uint8]) -> bool:
    blocks = data.reshape(-1, block_layouts[tensor.type].bytes)
    zero = tensor.type in half_offsets
    for offset in half_offsets.get(tensor.type, ()):
        halves = np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2")
        zero &= not _largest(tensor, halves, "a scale")
    return zero


def _largest(tensor: Tensor, numbers: NDArray[np.generic], what: str) -> float:
    with np.errstate(invalid="ignore"):  # what is looked for
        least, most = float(np.min(numbers)), float(np.max(numbers))
    largest = max(-least, most)
    if not np.isfinite(least) or not np.isfinite(most):
        _refuse(tensor, f"has {what} that is not a finite number")
    _check_size(tensor, largest, what)
    return largest


def _check_size(tensor: Tensor, largest: float, what: str) -> None:
    if largest > value_max:
        _refuse(tensor, f"has {what} of {largest:.3g}, which no model has")


def _refuse(tensor: Tensor, problem: str) -> NoReturn:
    raise ModelFileError(
        f"tensor {tensor.name} {problem}; the file is damaged or was converted wrongly: fetch it "
        "again, or use another.",
        field=f"tensor {tensor.name}",
    )
