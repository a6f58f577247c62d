"""GPTQ and AWQ: small integers packed in 32-bit words, with scales and zeros by groups of inputs.

    GPTQ   qweight  (inputs * bits / 32, outputs)  codes along the inputs, lowest bits first
           qzeros   (groups, outputs * bits / 32)  zeros less one, but not in `gptq_v2`
           scales   (groups, outputs)
           g_idx    (inputs,)                      the group of each input; absent: in order
    AWQ    qweight  (inputs, outputs / 8)          codes along the outputs, interleaved
           qzeros   (groups, outputs / 8)          in the same order
           scales   (groups, outputs)

Layouts as AutoGPTQ and AutoAWQ (GEMM) write them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ModelFileError
from headrace.weights.huggingface.safetensors_file import StoredTensor
from headrace.weights.huggingface.unpacked import (
    IntegerMatrix,
    Integers,
    Unpacked,
    floats_of,
    wrong_part,
)

gptq_bits = (2, 3, 4, 8)
awq_order = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # where in its word the code of an output is
parts_of_weight = ("qweight", "qzeros", "scales", "g_idx")

Words = NDArray[np.int32]
Places = NDArray[np.int64]
Stored = Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class IntegerScheme:
    """One of the two, with what config.json says of it."""

    method: str  # "gptq" or "awq"
    bits: int
    zeros_less_one: bool

    def unpack(self, stored: Stored) -> tuple[Unpacked, set[str]]:
        """The quantized weights, and the names of the tensors that they were made of."""
        unpacked, used = Unpacked(), set[str]()
        for name in stored:
            stem, _, kind = name.rpartition(".")
            if kind != "qweight":
                continue
            parts = {
                part: stored[f"{stem}.{part}"]
                for part in parts_of_weight
                if f"{stem}.{part}" in stored
            }
            for part in ("qzeros", "scales"):
                if part not in parts:
                    raise wrong_part(stored[name], f"has no {stem}.{part} beside it")
            self._matrix(f"{stem}.weight", parts).tensor(unpacked)
            used |= {part.name for part in parts.values()}
        return unpacked, used

    def _matrix(self, name: str, parts: Stored) -> IntegerMatrix:
        scales = parts["scales"]
        if len(scales.shape) != 2 or 0 in scales.shape:
            raise wrong_part(scales, "is no matrix")
        group_count, outputs = scales.shape
        words, zero_words = words_of(parts["qweight"]), words_of(parts["qzeros"])
        packed_outputs = -(-outputs * self.bits // 32)
        inputs = words.shape[0] if self.method == "awq" else words.shape[0] * 32 // self.bits
        columns = packed_outputs if self.method == "awq" else outputs
        if words.shape[1] != columns or inputs % group_count:
            raise wrong_part(
                parts["qweight"], f"is {words.shape} for {outputs} outputs of {self.bits} bits"
            )
        if zero_words.shape != (group_count, packed_outputs):
            raise wrong_part(parts["qzeros"], f"is {zero_words.shape}")
        return IntegerMatrix(
            name,
            outputs,
            inputs,
            code_range=(0, 2**self.bits - 1),
            codes=lambda: self._codes(words)[:outputs],
            group_count=group_count,
            scales=lambda: np.ascontiguousarray(floats_of(scales).T),
            zeros=lambda: self._zeros(zero_words)[:outputs],
            groups=groups_of(parts.get("g_idx"), inputs, group_count),
        )

    def _codes(self, words: Words) -> Integers:
        if self.method == "awq":
            return np.ascontiguousarray(_awq_codes(words).T)
        return codes_along_rows(np.ascontiguousarray(words.T), self.bits)

    def _zeros(self, words: Words) -> Integers:
        if self.method == "awq":
            return np.ascontiguousarray(_awq_codes(words).T)
        zeros = codes_along_rows(words, self.bits)
        if self.zeros_less_one:
            zeros = (zeros + 1) & np.int16(2**self.bits - 1)
        return np.ascontiguousarray(zeros.T)


def codes_along_rows(words: Words, bits: int) -> Integers:
    """The codes that each row's words hold as one stream of bits, lowest first."""
    rows = words.shape[0]
    if bits == 8:
        return np.ascontiguousarray(words).view(np.uint8).reshape(rows, -1).astype(np.int16)
    if 32 % bits == 0:
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        codes = words.view(np.uint32)[:, :, np.newaxis] >> shifts & np.uint32(2**bits - 1)
        return codes.reshape(rows, -1).astype(np.int16)
    stream = np.unpackbits(
        np.ascontiguousarray(words).view(np.uint8).reshape(rows, -1), axis=1, bitorder="little"
    ).reshape(rows, -1, bits)
    place_values = (1 << np.arange(bits)).astype(np.int16)
    found: Integers = (stream * place_values).sum(axis=2, dtype=np.int16)
    return found


def _awq_codes(words: Words) -> Integers:
    """(rows, outputs) codes; the eight of a word are interleaved."""
    return (
        codes_along_rows(words, 4)
        .reshape(words.shape[0], -1, 8)[:, :, awq_order]
        .reshape(words.shape[0], -1)
    )


def words_of(stored: StoredTensor) -> Words:
    """A matrix of 32-bit words."""
    if stored.dtype != "I32" or len(stored.shape) != 2 or 0 in stored.shape:
        raise wrong_part(stored, "is no matrix of I32")
    return stored.data.view(np.int32).reshape(stored.shape)


def groups_of(
    stored: StoredTensor | None, inputs: int, group_count: int
) -> NDArray[np.int64] | None:
    """The group of each input; None where they are in order."""
    if stored is None:
        return None
    if stored.dtype != "I32" or stored.shape != (inputs,):
        raise wrong_part(stored, f"is no I32 for each of {inputs} inputs")
    groups = stored.data.view(np.int32).astype(np.int64)
    in_order = np.arange(inputs) // (inputs // group_count)
    if (groups == -1).all() or (groups == in_order).all():
        return None
    if groups.min() < 0 or groups.max() >= group_count:
        raise wrong_part(stored, f"names a group that is none of {group_count}")
    return groups


def integer_scheme(settings: Mapping[str, object]) -> IntegerScheme:
    """The scheme of a quantization_config; ModelFileError for what is not read."""
    method = str(settings.get("quant_method"))
    bits = settings.get("bits", settings.get("w_bit", 4))
    if not isinstance(bits, int) or bits not in (gptq_bits if method == "gptq" else (4,)):
        raise _refused(f"{method} of {bits!r} bits")
    if method == "gptq":
        return IntegerScheme("gptq", bits, settings.get("checkpoint_format") != "gptq_v2")
    version = str(settings.get("version", "gemm")).lower()
    if version != "gemm" or settings.get("zero_point", True) is not True:
        raise _refused(f"AWQ of version {version!r} with zero_point {settings.get('zero_point')}")
    return IntegerScheme("awq", 4, zeros_less_one=False)


def _refused(what: str) -> ModelFileError:
    return ModelFileError(
        f"config.json: quantization_config: {what} is not read; use another file of the model.",
        field="quantization_config",
    )
