"""Blocks of 256 weights, or of codes looked up in a table, back to float32; see dequantize.py.

The K types hold 256 weights under one or two half-precision factors; every 16 or 32 of them have a
small integer scale of their own. Each function takes (blocks, bytes) and gives (blocks, weights).

    type    bytes  parts in order                                       weight
    Q2_K    84     16 scales and minimums, 64 of codes, factors d, m    d s code - m t
    Q3_K    110    32 of third bits, 64 of codes, 12 of scales, d       d s (code - 4)
    Q4_K    144    d, m, 12 of scales and minimums, 128 of codes        d s code - m t
    Q5_K    176    d, m, 12 of both, 32 of fifth bits, 128 of codes     d s code - m t
    Q6_K    210    128 low and 64 high parts of codes, 16 scales, d     d s (code - 32)
    IQ4_NL  18     d, 16 of codes                                       d dense[code]
    IQ4_XS  136    d, 2 + 4 of scales, 128 of codes                     d (s - 32) dense[code]
    MXFP4   17     exponent, 16 of codes                                2^(e - 128) e2m1[code]
"""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

dense_values = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
doubled_e2m1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def half(blocks: Bytes, offset: int) -> Floats:
    """The half-precision number at `offset` of each block, as a column (blocks, 1)."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """(blocks, n) bytes as (blocks, 2n) numbers: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def fields(packed: Bytes, run: int, bits: int) -> Bytes:
    """Numbers of `bits` bits: in each run of bytes first the lowest field of all, then the next."""
    runs: Bytes = packed.reshape(len(packed), -1, 1, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    parts = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts, np.uint8).reshape(len(packed), -1)


def q2_k(blocks: Bytes) -> Floats:
    """2-bit codes; a 4-bit scale and minimum for 16 weights."""
    scales = half(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    minimums = half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    codes = fields(blocks[:, 16:80], 32, 2).astype(np.float32)
    values = np.repeat(scales, 16, axis=1) * codes - np.repeat(minimums, 16, axis=1)
    return np.asarray(values, np.float32)


def q3_k(blocks: Bytes) -> Floats:
    """3-bit codes around 4, a 6-bit scale around 32 for 16 weights."""
    scales = nibbles(blocks[:, 96:104]) | fields(blocks[:, 104:108], 4, 2) << 4
    steps: Floats = half(blocks, 108) * (scales.astype(np.float32) - np.float32(32))
    codes = fields(blocks[:, 32:96], 32, 2) | fields(blocks[:, :32], 32, 1) << 2
    values = np.repeat(steps, 16, axis=1) * (codes.astype(np.float32) - np.float32(4))
    return np.asarray(values, np.float32)


def q4_k(blocks: Bytes) -> Floats:
    """4-bit codes, a 6-bit scale and minimum for 32 weights."""
    return _with_super_scales(blocks, fields(blocks[:, 16:], 32, 4))


def q5_k(blocks: Bytes) -> Floats:
    """5-bit codes, a 6-bit scale and minimum for 32 weights."""
    fifths = fields(blocks[:, 16:48], 32, 1) * np.uint8(16)
    codes: Bytes = fields(blocks[:, 48:], 32, 4) | fifths
    return _with_super_scales(blocks, codes)


def q6_k(blocks: Bytes) -> Floats:
    """6-bit codes around 32, an 8-bit scale for 16 weights."""
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    codes = fields(blocks[:, :128], 64, 4) | fields(blocks[:, 128:192], 32, 2) << 4
    steps = np.repeat(half(blocks, 208) * scales, 16, axis=1)
    return np.asarray(steps * (codes.astype(np.float32) - np.float32(32)), np.float32)


def iq4_nl(blocks: Bytes) -> Floats:
    """4-bit codes of unevenly spaced values, one scale."""
    return np.asarray(half(blocks, 0) * dense_values[nibbles(blocks[:, 2:])], np.float32)


def iq4_xs(blocks: Bytes) -> Floats:
    """4-bit codes of unevenly spaced values, a 6-bit scale around 32 for 32 weights."""
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)
    high = ((blocks[:, 2:4, np.newaxis] >> shifts) & np.uint8(3)).reshape(-1, 8)
    scales = half(blocks, 0) * ((low | high << 4).astype(np.float32) - np.float32(32))
    values = dense_values[fields(blocks[:, 8:], 16, 4)]
    return np.repeat(scales, 32, axis=1) * np.asarray(values, np.float32)


def mxfp4(blocks: Bytes) -> Floats:
    """4-bit floats under a shared power of two."""
    return np.ldexp(
        doubled_e2m1[nibbles(blocks[:, 1:])], blocks[:, :1].astype(np.int32) - 128
    ).astype(np.float32)


def _with_super_scales(blocks: Bytes, codes: Bytes) -> Floats:
    """Eight 6-bit scales and minimums: of the last four, the upper bits lie in the first four."""
    scale, minimum, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([scale & 63, rest & 15 | (scale >> 6) << 4], axis=1)
    minimums = np.concatenate([minimum & 63, rest >> 4 | (minimum >> 6) << 4], axis=1)
    steps = np.repeat(half(blocks, 0) * scales.astype(np.float32), 32, axis=1)
    floors = np.repeat(half(blocks, 2) * minimums.astype(np.float32), 32, axis=1)
    return steps * codes.astype(np.float32) - floors
