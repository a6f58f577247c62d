"""Which KV blocks a sequence has, and which it can share: block tables and the prefix cache.

A full block's hash chains over everything before it (`base/prefix_hash.py`), under a secret key, a
namespace (model version and whatever else changes the KV), the adapter's digest and the tenant's
salt. Content is findable only after its step has run. A hit never covers the last token: its
logits are needed.

A choice whose leader has computed their prompt shares the leader's blocks, cached or not, up to the
one with the prompt's last token, of which it gets a copy: both write on in theirs.

What a preempted sequence gave back is its own again when it returns, as far as nobody took it
meanwhile; the deepest blocks are taken first. It holds no reference, so it is in nobody's way.

What an operator marked public is named without a salt, so that all tenants share it; from the first
block that is not wholly public on, names are a tenant's own again.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as TokenIds
from typing import NamedTuple

import numpy as np

from headrace.base.prefix_hash import next_hash, public_salt, public_token_count, root_hash
from headrace.engine.block_pool import BlockPool
from headrace.engine.sequence import Sequence, no_table


class Prefix(NamedTuple):
    """What is computed of a sequence's beginning."""

    blocks: list[int]  # the last one may be full in part only, if no other sequence has it
    tokens: int


class KvCache:
    """Block tables over one pool; with a `prefix_key` also content shared across requests."""

    def __init__(
        self,
        num_blocks: int,
        block_size_tokens: int,
        prefix_key: bytes | None,
        namespace: str,
        salt_blocks_max: int | None = None,
        *,
        public_prompts: Iterable[TokenIds[int]] = (),
    ) -> None:
        """What requests have in common with `public_prompts` is shared by all salts."""
        self.pool = BlockPool(num_blocks, salt_blocks_max)
        self.block_size_tokens = block_size_tokens
        self._prefix_key = prefix_key
        self._namespace = namespace
        self._public_prompts = [array("i", prompt) for prompt in public_prompts]
        self.spare_blocks = 0  # that drafts leave to those who run
        self._copies: list[tuple[int, int]] = []  # blocks to copy before the next step
        self._promised: dict[bytes, Sequence] = {}  # content that a running sequence will compute

    def block_count(self, token_count: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-token_count // self.block_size_tokens)

    def find_prefix(self, sequence: Sequence) -> Prefix:
        """The longest beginning of the sequence that is computed, its last token excluded.

        Only its own where the prompt's log-probabilities are wanted: those come with the KV."""
        own = self._still_kept(sequence)
        if sequence.prompt_logprobs is not None:
            return own
        leader = self._ready_leader(sequence)
        if leader is not None:
            blocks = leader.blocks[: self._shareable_blocks(sequence)]
            return Prefix(blocks, len(blocks) * self.block_size_tokens)
        if self._prefix_key is None:
            return own
        hits: list[int] = []
        self._extend_hashes(sequence, self._shareable_blocks(sequence))
        for content_hash in sequence.block_hashes[: self._shareable_blocks(sequence)]:
            block = self.pool.find(content_hash)
            if block is None:
                break
            hits.append(block)
        tokens = len(hits) * self.block_size_tokens
        return own if own.tokens > tokens else Prefix(hits, tokens)

    def promised_by(self, sequence: Sequence, hit_count: int) -> Sequence | None:
        """The running sequence that is about to compute the first block `find_prefix` missed."""
        if self._ready_leader(sequence) is not None:
            return None
        if sequence.prompt_logprobs is not None:
            return None
        if self._prefix_key is None or hit_count >= self._shareable_blocks(sequence):
            return None
        return self._promised.get(sequence.block_hashes[hit_count])

    def admission_cost(self, sequence: Sequence, hits: Iterable[int]) -> int:
        """Free blocks that holding all of the sequence's tokens takes.

        A hit that no one refers to costs what a new block does: it leaves the free list too."""
        shared = sum(not self.pool.is_free(block) for block in hits)
        return self.block_count(sequence.total) - shared

    def admit(self, sequence: Sequence, found: Prefix, host_tokens: int = 0) -> None:
        """Give a sequence what was found and new blocks for the rest of its tokens.

        So many of its first tokens are about to be copied into blocks beyond what was found."""
        assert not sequence.blocks
        hits, full = found.blocks, found.tokens // self.block_size_tokens
        self.pool.touch(hits)
        sequence.kept_blocks, sequence.kept_uses, sequence.kept_tokens = [], [], 0
        needed = self.block_count(sequence.total)
        sequence.blocks = hits + self.pool.allocate(needed - len(hits))
        full_length = self.block_count(sequence.prompt_count + sequence.max_tokens)
        sequence.table = np.empty(full_length, np.int32)
        sequence.table[:needed] = sequence.blocks
        sequence.computed = max(found.tokens, host_tokens)
        leader = self._ready_leader(sequence)
        if leader is not None and sequence.computed < sequence.prompt_count - 1:
            sequence.computed = sequence.prompt_count - 1
            self._copies.append((leader.blocks[len(hits)], sequence.blocks[len(hits)]))
        sequence.committed_blocks = full
        if self._prefix_key is not None:
            for content_hash in sequence.block_hashes[full:]:
                self._promised.setdefault(content_hash, sequence)

    def grow(self, sequence: Sequence) -> bool:
        """Make room for all tokens of a running sequence; False if the pool is empty."""
        count = len(sequence.blocks)
        if sequence.total <= count * self.block_size_tokens:
            return True
        if not self.pool.free_count:
            return False
        (block,) = self.pool.allocate(1)
        sequence.blocks.append(block)
        sequence.table[count] = block
        return True

    def extend(self, sequence: Sequence, count: int) -> int:
        """Make room for `count` tokens beyond a running sequence's own; for how many there is.

        Takes blocks only while so many are free that each running sequence can still grow."""
        total = sequence.total + count
        while total > len(sequence.blocks) * self.block_size_tokens:
            if self.pool.free_count <= self.spare_blocks:
                return len(sequence.blocks) * self.block_size_tokens - sequence.total
            (block,) = self.pool.allocate(1)
            sequence.table[len(sequence.blocks)] = block
            sequence.blocks.append(block)
        return count

    def take_copies(self) -> list[tuple[int, int]]:
        """The blocks (source, destination) to copy, in order, before the step that was scheduled.

        What was preempted since may have lost one to another, which overwrites it in that step."""
        copies, self._copies = self._copies, []
        return copies

    def commit(self, sequence: Sequence) -> None:
        """Make the full blocks among the computed tokens findable."""
        full = sequence.computed // self.block_size_tokens
        if self._prefix_key is None or full <= sequence.committed_blocks:
            return
        self._extend_hashes(sequence, full)
        for index in range(sequence.committed_blocks, full):
            content_hash = sequence.block_hashes[index]
            is_public = index < self._public_blocks(sequence)
            owner = public_salt if is_public else sequence.request.cache_salt
            self.pool.register(sequence.blocks[index], content_hash, owner)
            self._withdraw(sequence, content_hash)
        sequence.committed_blocks = full

    def release(self, sequence: Sequence, *, is_kept: bool = False) -> None:
        """Give back every block; its content stays findable until it is reused. Idempotent.

        `is_kept` is noted for a sequence that will come back for what is left."""
        for content_hash in sequence.block_hashes[sequence.committed_blocks :]:
            self._withdraw(sequence, content_hash)
        if is_kept:
            blocks = sequence.blocks[: self.block_count(sequence.computed)]
            sequence.kept_blocks, sequence.kept_tokens = blocks, sequence.computed
            sequence.kept_uses = self.pool.uses_of(blocks)
        self.pool.release(sequence.blocks, is_kept=is_kept)
        sequence.blocks = []
        sequence.table = no_table
        sequence.computed = 0
        sequence.committed_blocks = 0

    def forget(self, sequence: Sequence) -> None:
        """Never offer the sequence's blocks to others: something in them was not finite."""
        self.pool.forget(sequence.blocks)

    def names(self, sequence: Sequence, token_count: int) -> tuple[bytes, ...]:
        """What tells the content of the blocks of a sequence's first tokens from any other.

        A last block that is not full has a name, too, which is the tenant's own in any case."""
        full = token_count // self.block_size_tokens
        self._extend_hashes(sequence, full)
        names = tuple(sequence.block_hashes[:full])
        tail = sequence.tokens[full * self.block_size_tokens : token_count]
        if not tail:
            return names
        assert self._prefix_key is not None
        namespace = names[-1].hex() if names else self._namespace
        root = self._root(sequence, namespace, sequence.request.cache_salt)
        return (*names, next_hash(self._prefix_key, root, tail))

    def check_invariants(self, running: Iterable[Sequence]) -> None:
        """Assert what must hold when `running` are all sequences that have blocks; for tests."""
        sequences = list(running)
        self.pool.check_invariants(sequence.blocks for sequence in sequences)
        for sequence in sequences:
            count = len(sequence.blocks)
            assert list(sequence.table[:count]) == sequence.blocks, "table row differs"
            assert sequence.computed <= count * self.block_size_tokens, "computed without a block"
            assert sequence.committed_blocks * self.block_size_tokens <= sequence.computed
        for owner in self._promised.values():
            assert any(owner is sequence for sequence in sequences), "promised by no running one"

    def _ready_leader(self, sequence: Sequence) -> Sequence | None:
        """The leader of a choice that has no output yet, if it holds the KV of their prompt."""
        leader = sequence.leader
        if leader is None or sequence.completion_count or not leader.blocks:
            return None
        return leader if leader.computed >= sequence.prompt_count - 1 else None

    def _still_kept(self, sequence: Sequence) -> Prefix:
        """What a preempted sequence had and nobody took."""
        count = 0
        for uses, before in zip(
            self.pool.uses_of(sequence.kept_blocks), sequence.kept_uses, strict=True
        ):
            if uses != before:
                break
            count += 1
        tokens = min(count * self.block_size_tokens, sequence.kept_tokens)
        return Prefix(sequence.kept_blocks[:count], tokens)

    def _shareable_blocks(self, sequence: Sequence) -> int:
        """Full blocks before the last token."""
        return (sequence.total - 1) // self.block_size_tokens

    def _withdraw(self, sequence: Sequence, content_hash: bytes) -> None:
        if self._promised.get(content_hash) is sequence:
            del self._promised[content_hash]

    def _extend_hashes(self, sequence: Sequence, count: int) -> None:
        """Compute the chain up to `count` blocks; each is computed once in a sequence's life."""
        assert self._prefix_key is not None
        hashes = sequence.block_hashes
        if len(hashes) >= count:
            return
        key, size = self._prefix_key, self.block_size_tokens
        public = self._public_blocks(sequence)
        parent = hashes[-1] if hashes else self._root(sequence, self._namespace, public_salt)
        for index in range(len(hashes), count):
            if index == public:  # from here on it is the tenant's own
                namespace = parent.hex() if public else self._namespace
                parent = self._root(sequence, namespace, sequence.request.cache_salt)
            parent = next_hash(key, parent, sequence.tokens[index * size : (index + 1) * size])
            hashes.append(parent)

    def _root(self, sequence: Sequence, namespace: str, salt: str) -> bytes:
        assert self._prefix_key is not None
        adapter = sequence.request.adapter
        version = "" if adapter is None else adapter.version
        return root_hash(self._prefix_key, namespace, salt, version)

    def _public_blocks(self, sequence: Sequence) -> int:
        """Full blocks at the beginning of a sequence that an operator's public prompt has, too."""
        if sequence.public_blocks is None:
            prompt = sequence.tokens[: sequence.prompt_count]
            common = public_token_count(prompt, self._public_prompts)
            sequence.public_blocks = common // self.block_size_tokens
        return sequence.public_blocks
