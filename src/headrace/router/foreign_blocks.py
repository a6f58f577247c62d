"""Blocks that an engine names by hashes of its own, named anew under the platform's key.

An engine that tells the tokens of what it stores needs no secret of ours: the chain is followed
from a block's parent, and each block gets the hash that our own engine would give it. Such an
engine keeps tenants apart inside its own hashes, which do not say by what; so one salt, none, is
used for all of them, and a match may be another tenant's: a poorer choice, never a shared block.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from headrace.base.prefix_hash import next_hash, root_hash

blocks_max = 1 << 20  # of one engine; the oldest are forgotten first
ForeignHash = int | bytes


class ForeignBlocks:
    """One engine's blocks by its hashes."""

    def __init__(self, key: bytes, namespace: str) -> None:
        self._key = key
        self._root = root_hash(key, namespace, "")
        self._known: OrderedDict[ForeignHash, bytes] = OrderedDict()

    def stored(
        self,
        hashes: Sequence[ForeignHash],
        parent: ForeignHash | None,
        token_ids: Sequence[int],
        block_size_tokens: int,
    ) -> list[bytes]:
        """Our names of blocks that were stored; none after a parent that is not known."""
        ours = self._root if parent is None else self._known.get(parent)
        if ours is None or len(token_ids) < len(hashes) * block_size_tokens:
            return []
        found = []
        for position, theirs in enumerate(hashes):
            start = position * block_size_tokens
            tokens = array("i", token_ids[start : start + block_size_tokens])
            ours = next_hash(self._key, ours, tokens)
            self._known[theirs] = ours
            found.append(ours)
        while len(self._known) > blocks_max:
            self._known.popitem(last=False)
        return found

    def removed(self, hashes: Sequence[ForeignHash]) -> list[bytes]:
        """Our names of blocks that are gone, as far as they were known."""
        found = [self._known.pop(theirs, None) for theirs in hashes]
        return [ours for ours in found if ours is not None]

    def forget(self) -> None:
        """All of them are gone, or some word was missed."""
        self._known.clear()
