"""The KV of a prompt, as it goes from one engine to another; see `kv_transfer.py`."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvParcel:
    """The KV of a prompt's first tokens."""

    fingerprint: bytes  # of the engine that computed it
    names: tuple[bytes, ...]  # of the full blocks, then of the last one if it is not full
    token_count: int
    cached_tokens: int  # of them, that its maker had in its prefix cache
    blocks: Sequence[bytes]  # each as the runner exports it alone
    block_ids: tuple[int, ...] = ()  # at its maker; for people
