"""The pool of KV blocks: who holds which, what content free ones still have, which is reused next.

A free block keeps its content and its hash until it is handed out again, so "free" and "cached" are
one state, and the free list is the eviction order:

    reused first                                              reused last
    [ no hash ... | released earlier ... | ... released later: tail block ... first block ]

A sequence's blocks are appended in reverse, so that the deepest block, shared by the fewest, goes
before the first one. A block's number of uses tells whether one that was given back still has its
content, hash or not. Every operation is O(1) a block.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class CacheChange(NamedTuple):
    """Content that became findable, or is no more."""

    stored: bool
    content_hash: bytes


class BlockPool:
    """Reference counts, the free list and the map from content hash to block."""

    def __init__(self, num_blocks: int, owned_max: int | None = None) -> None:
        """An owner keeps `owned_max` findable blocks at most: a new one replaces its oldest."""
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self.changes: list[CacheChange] | None = None  # a list records them
        self._owned_max = num_blocks if owned_max is None else owned_max
        self._owner_of: list[str] = [""] * num_blocks  # of findable blocks
        self._owned: dict[str, OrderedDict[int, None]] = {}  # oldest use first
        self._reference_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._uses = [0] * num_blocks  # times that it was handed out

    @property
    def free_count(self) -> int:
        """Blocks that can be handed out, those with reusable content included."""
        return len(self._free)

    @property
    def used_count(self) -> int:
        """Blocks that a sequence refers to."""
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` blocks, their content forgotten; the caller has checked `free_count`."""
        assert count <= len(self._free)
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._drop_hash(block)
            self._reference_counts[block] = 1
            self._uses[block] += 1
            blocks.append(block)
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Refer to blocks found by `find` once more; free ones leave the free list."""
        for block in blocks:
            if self._hash_of[block] is not None:
                self._owned[self._owner_of[block]].move_to_end(block)
            if self._reference_counts[block] == 0:
                del self._free[block]
            self._reference_counts[block] += 1

    def release(self, blocks: Sequence[int], *, is_kept: bool = False) -> None:
        """Give back one reference to each block of a table, whose order is the sequence's.

        What has no hash is reused first, unless it `is_kept` for the sequence to come back to."""
        for block in reversed(blocks):
            count = self._reference_counts[block] - 1
            assert count >= 0
            self._reference_counts[block] = count
            if count == 0:
                self._free[block] = None
                if self._hash_of[block] is None and not is_kept:
                    self._free.move_to_end(block, last=False)

    def uses_of(self, blocks: Sequence[int]) -> list[int]:
        """How often each was handed out: while that is the same, its content is."""
        return [self._uses[block] for block in blocks]

    def find(self, content_hash: bytes) -> int | None:
        """The block with this content, in use or free."""
        return self._block_of.get(content_hash)

    def is_free(self, block: int) -> bool:
        """Whether no sequence refers to it."""
        return self._reference_counts[block] == 0

    def register(self, block: int, content_hash: bytes, owner: str = "") -> None:
        """Make a full block's content findable, unless its owner has its share in use.

        If another block has the same content already, that one stays the one to be found: tables
        only grow, so duplicates are not merged."""
        assert self._reference_counts[block] > 0
        if self._hash_of[block] is not None or content_hash in self._block_of:
            return
        if not self._make_room(owner):
            return
        self._hash_of[block] = content_hash
        self._block_of[content_hash] = block
        self._owner_of[block] = owner
        self._owned.setdefault(owner, OrderedDict())[block] = None
        if self.changes is not None:
            self.changes.append(CacheChange(True, content_hash))

    def forget(self, blocks: Iterable[int]) -> None:
        """Make the content of these blocks unfindable, because it cannot be trusted."""
        for block in blocks:
            self._drop_hash(block)

    def forget_all(self) -> None:
        """Make every block's content unfindable; references stay."""
        self.forget(range(self.num_blocks))

    def forget_owner(self, owner: str) -> None:
        """Make the content of an owner's blocks unfindable; references stay."""
        self.forget(tuple(self._owned.get(owner, ())))

    def owned_count(self, owner: str) -> int:
        """Findable blocks of an owner."""
        return len(self._owned.get(owner, ()))

    def reclaim(self) -> int:
        """Take back every block while no sequence has any; how many were held by nobody.

        Their content is forgotten: nobody knows who wrote it last."""
        lost = [block for block, count in enumerate(self._reference_counts) if count]
        for block in lost:
            self._drop_hash(block)
            self._reference_counts[block] = 0
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        return len(lost)

    def exclusive_count(self, tables: Iterable[Sequence[int]]) -> int:
        """How many blocks would become free if these tables were released."""
        references: dict[int, int] = {}
        for table in tables:
            for block in table:
                references[block] = references.get(block, 0) + 1
        return sum(self._reference_counts[block] == held for block, held in references.items())

    def check_invariants(self, tables: Iterable[Sequence[int]]) -> None:
        """Assert what must hold when `tables` are all the tables there are; for tests."""
        references = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), "a table holds a block twice"
            for block in table:
                references[block] += 1
        assert references == self._reference_counts, "reference counts differ from the tables"
        for block, count in enumerate(references):
            assert (count == 0) == (block in self._free), f"block {block} is both free and in use"
        for content_hash, block in self._block_of.items():
            assert self._hash_of[block] == content_hash, "the hash map points at another content"
        hashed = sum(content_hash is not None for content_hash in self._hash_of)
        assert hashed == len(self._block_of), "a block has a hash that nothing finds"
        for owner, blocks in self._owned.items():
            assert blocks, "an owner of nothing is remembered"
            assert len(blocks) <= self._owned_max, "an owner has more than its share"
            assert all(self._owner_of[block] == owner for block in blocks)
        assert hashed == sum(map(len, self._owned.values()))

    def _make_room(self, owner: str) -> bool:
        """Whether an owner may have one more findable block; its oldest free one may give way."""
        owned = self._owned.get(owner, OrderedDict())
        if len(owned) < self._owned_max:
            return True
        oldest = next((block for block in owned if self._reference_counts[block] == 0), None)
        if oldest is None:
            return False
        self._drop_hash(oldest)
        self._free.move_to_end(oldest, last=False)
        return True

    def _drop_hash(self, block: int) -> None:
        content_hash = self._hash_of[block]
        if content_hash is not None:
            self._hash_of[block] = None
            del self._block_of[content_hash]
            owned = self._owned[self._owner_of[block]]
            del owned[block]
            if not owned:
                del self._owned[self._owner_of[block]]
            if self.changes is not None:
                self.changes.append(CacheChange(False, content_hash))
