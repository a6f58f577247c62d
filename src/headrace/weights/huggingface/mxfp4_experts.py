"""gpt-oss's experts in MXFP4: the same numbers in GGUF's order of nibbles, nothing rounded.

    <experts>_blocks  U8 (experts, outputs, inputs / 32, 16)   two neighbours a byte, the first low
    <experts>_scales  U8 (experts, outputs, inputs / 32)       exponents

GGUF's block has the exponent first, then the first sixteen codes low and the others high. Outputs
of gate_up_proj are a gate and an up in turn.
"""

from collections.abc import Callable, Mapping

import numpy as np

from headrace.weights.huggingface.safetensors_file import StoredTensor
from headrace.weights.huggingface.unpacked import Unpacked, wrong_part
from headrace.weights.tensor import Bytes, Tensor, TensorType

blocks_ending = "_blocks"


class Mxfp4Scheme:
    """The scheme of gpt-oss's files."""

    def unpack(self, stored: Mapping[str, StoredTensor]) -> tuple[Unpacked, set[str]]:
        """The experts' matrices, one by one, and the names of the tensors that they were made of.

        The names are those of models that store each expert by itself."""
        unpacked, used = Unpacked(), set[str]()
        for name, blocks in stored.items():
            if not name.endswith(blocks_ending):
                continue
            stem = name.removesuffix(blocks_ending)
            scales = stored.get(f"{stem}_scales")
            if (
                scales is None
                or {blocks.dtype, scales.dtype} != {"U8"}
                or len(blocks.shape) != 4
                or blocks.shape != (*scales.shape, 16)
            ):
                raise wrong_part(blocks, "has no scales of its shape beside it")
            for expert in range(blocks.shape[0]):
                _add_expert(unpacked, stem, expert, blocks, scales)
            used |= {name, scales.name}
        return unpacked, used


def _add_expert(
    unpacked: Unpacked, stem: str, expert: int, blocks: StoredTensor, scales: StoredTensor
) -> None:
    prefix, _, part = stem.rpartition(".")
    _, outputs, groups, _ = blocks.shape
    parts = {"down_proj": slice(None)}
    if part == "gate_up_proj":
        parts = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
    elif part != "down_proj":
        raise wrong_part(blocks, "is no part of an expert")
    for name, rows in parts.items():
        shape = (len(range(*rows.indices(outputs))), groups * 32)
        whole = f"{prefix}.{expert}.{name}.weight"
        source = _source(blocks, scales, expert, rows)
        unpacked.add(Tensor(whole, TensorType.MXFP4, shape, source), exactly=True)


def _source(
    blocks: StoredTensor, scales: StoredTensor, expert: int, rows: slice
) -> Callable[[], Bytes]:
    def make() -> Bytes:
        pairs = blocks.data.reshape(blocks.shape)[expert, rows]  # (outputs, groups, 16)
        exponents = scales.data.reshape(scales.shape)[expert, rows]
        codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], 32)
        turned = codes[..., :16] | codes[..., 16:] << np.uint8(4)
        return np.concatenate([exponents[..., np.newaxis], turned], axis=-1).reshape(-1)

    return make
