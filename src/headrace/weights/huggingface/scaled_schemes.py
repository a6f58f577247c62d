"""FP8 and compressed-tensors: weights whose parts say by their types and shapes what they are.

    weight F8_E4M3 or F8_E5M2   times weight_scale, or weight_scale_inv: for the whole tensor, each
                                output, or each block of outputs and inputs
    weight I8                   times weight_scale, for the whole tensor, each output or each group;
                                less weight_zero_point where there is one
    weight_packed I32           codes of 2 to 8 bits around the middle of their range, packed along
                                the inputs, with weight_shape, weight_scale, weight_g_idx;
                                weight_zero_point packed along the outputs

Scales of inputs are for engines that round activations to the same type; ours does not.
"""

from collections.abc import Mapping

import numpy as np

from headrace.weights.huggingface.integer_schemes import codes_along_rows, groups_of, words_of
from headrace.weights.huggingface.safetensors_file import StoredTensor
from headrace.weights.huggingface.unpacked import (
    Floats,
    IntegerMatrix,
    Integers,
    Unpacked,
    add_rounded,
    floats_of,
    wrong_part,
)

scale_names = ("weight_scale", "weight_scale_inv")
parts_of_weight = (
    *("weight", *scale_names, "weight_zero_point", "weight_packed", "weight_shape"),
    *("weight_g_idx", "input_scale", "input_zero_point", "output_scale", "input_scale_ub"),
    "activation_scale",
)
ignored_endings = (".k_scale", ".v_scale", ".q_scale", ".kv_scale")  # of caches in other types
packed_bits = (4, 8, 2, 3)

Stored = Mapping[str, StoredTensor]


class ScaledScheme:
    """The scheme of any such file."""

    def __init__(self, block: tuple[int, int] | None = None) -> None:
        """`block`: outputs and inputs of a block of scales, where config.json says it."""
        self._block = block

    def unpack(self, stored: Stored) -> tuple[Unpacked, set[str]]:
        """The quantized weights, and the names of the tensors that they were made of."""
        unpacked = Unpacked()
        used = {name for name in stored if name.endswith(ignored_endings)}
        for name, tensor in stored.items():
            stem, _, kind = name.rpartition(".")
            small = tensor.dtype in ("F8_E4M3", "F8_E5M2", "I8")
            if kind != "weight_packed" and not (kind == "weight" and small):
                continue
            parts = {
                part: stored[f"{stem}.{part}"]
                for part in parts_of_weight
                if f"{stem}.{part}" in stored
            }
            self._add(f"{stem}.weight", kind, parts, unpacked)
            used |= {part.name for part in parts.values()}
        return unpacked, used

    def _add(self, name: str, kind: str, parts: Stored, unpacked: Unpacked) -> None:
        weight = parts[kind]
        scale = next((parts[part] for part in scale_names if part in parts), None)
        if scale is None or len(weight.shape) != 2 or 0 in weight.shape:
            raise wrong_part(weight, "is no matrix with a weight_scale beside it")
        if kind == "weight_packed":
            _packed_matrix(name, parts, scale).tensor(unpacked)
        elif weight.dtype == "I8":
            _byte_matrix(name, parts, scale).tensor(unpacked)
        else:
            add_rounded(
                unpacked, name, weight.shape, lambda: _float8(weight) * self._spread(scale, weight)
            )

    def _spread(self, scale: StoredTensor, weight: StoredTensor) -> Floats:
        """A scale for each weight."""
        outputs, inputs = weight.shape
        scales = _as_matrix(floats_of(scale), scale, outputs)
        rows, columns = scales.shape
        size = self._block or (-(-outputs // rows), -(-inputs // columns))
        if rows == 1 or columns == 1:  # of the whole tensor, or of each output
            size = (-(-outputs // rows), -(-inputs // columns))
        if (-(-outputs // size[0]), -(-inputs // size[1])) != (rows, columns):
            raise wrong_part(scale, f"is {scales.shape} for weights of {weight.shape}")
        by_rows = np.repeat(scales, size[0], axis=0)[:outputs]
        return np.repeat(by_rows, size[1], axis=1)[:, :inputs]


def _float8(stored: StoredTensor) -> Floats:
    """Weights of eight bits as floats."""
    table = _e4m3_values() if stored.dtype == "F8_E4M3" else _e5m2_values()
    values = table[stored.data].reshape(stored.shape)
    if not np.isfinite(values).all():
        raise wrong_part(stored, "has a weight that is not finite")
    return values


def _e4m3_values() -> Floats:
    """The number of each byte: a sign, four bits of exponent around 7, three of fraction."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, (codes & 7) / 8
    size = np.where(exponent > 0, (1 + fraction) * 2.0 ** (exponent - 7), fraction * 2.0**-6)
    size[codes & 127 == 127] = np.nan
    return np.where(codes >> 7, -size, size).astype(np.float32)


def _e5m2_values() -> Floats:
    """The number of each byte: the upper half of a half."""
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


def _byte_matrix(name: str, parts: Stored, scale: StoredTensor) -> IntegerMatrix:
    weight = parts["weight"]
    outputs, inputs = weight.shape
    group_count = _scales(scale, outputs, inputs).shape[1]
    point = parts.get("weight_zero_point")
    if point is not None and (
        point.dtype != "I8" or point.data.size not in (1, outputs * group_count)
    ):
        raise wrong_part(point, "is no I8 for each scale")

    def zeros() -> Integers:
        if point is None:
            return np.zeros((1, 1), np.int16)
        found = point.data.view(np.int8).astype(np.int16)
        return found.reshape((1, 1) if found.size == 1 else (outputs, group_count))

    return IntegerMatrix(
        name,
        outputs,
        inputs,
        code_range=(-128, 127),
        codes=lambda: weight.data.view(np.int8).reshape(weight.shape).astype(np.int16),
        group_count=group_count,
        scales=lambda: _scales(scale, outputs, inputs),
        zeros=zeros,
    )


def _packed_matrix(name: str, parts: Stored, scale: StoredTensor) -> IntegerMatrix:
    packed, size = parts["weight_packed"], parts.get("weight_shape")
    words = words_of(packed)
    if size is None or size.dtype not in ("I64", "I32") or size.shape != (2,):
        raise wrong_part(packed, "has no weight_shape beside it")
    kind = np.int64 if size.dtype == "I64" else np.int32
    outputs, inputs = (int(side) for side in size.data.view(kind))
    bits = next(
        (bits for bits in packed_bits if words.shape == (outputs, -(-inputs * bits // 32))), None
    )
    if bits is None:
        raise wrong_part(packed, f"is {words.shape} for {outputs} outputs of {inputs}")
    middle = np.int16(2 ** (bits - 1))
    group_count = _scales(scale, outputs, inputs).shape[1]
    point = parts.get("weight_zero_point")
    if point is not None and words_of(point).shape != (-(-outputs * bits // 32), group_count):
        raise wrong_part(point, f"is {point.shape} for {outputs} outputs of {group_count} groups")

    def zeros() -> Integers:
        if point is None:
            return np.zeros((1, 1), np.int16)
        columns = np.ascontiguousarray(words_of(point).T)
        return np.ascontiguousarray(codes_along_rows(columns, bits).T[:outputs]) - middle

    return IntegerMatrix(
        name,
        outputs,
        inputs,
        code_range=(-int(middle), int(middle) - 1),
        codes=lambda: codes_along_rows(words, bits)[:, :inputs] - middle,
        group_count=group_count,
        scales=lambda: _scales(scale, outputs, inputs),
        zeros=zeros,
        groups=groups_of(parts.get("weight_g_idx"), inputs, group_count),
    )


def _scales(scale: StoredTensor, outputs: int, inputs: int) -> Floats:
    """A scale for each output and group, (outputs, groups)."""
    scales = _as_matrix(floats_of(scale), scale, outputs)
    if scales.shape[0] not in (1, outputs) or inputs % scales.shape[1]:
        raise wrong_part(scale, f"is {scale.shape} for {outputs} outputs of {inputs}")
    return np.broadcast_to(scales, (outputs, scales.shape[1]))


def _as_matrix(scales: Floats, stored: StoredTensor, outputs: int) -> Floats:
    if scales.size == 0:
        raise wrong_part(stored, "is empty")
    if scales.size == 1:
        return scales.reshape(1, 1)
    if scales.ndim == 1 and len(scales) == outputs:
        return scales.reshape(-1, 1)
    if scales.ndim != 2:
        raise wrong_part(stored, f"is {stored.shape}")
    return scales
