"""A prompt as a chain of hashes, so that an index can tell how much of it an endpoint has seen.

    text    [ 16 blocks of 512 B ][ 28 of 2 KiB ][ 48 of 4 KiB ][ 120 of 16 KiB ]
    keys    k1 = hash(root, b1)   k2 = hash(k1, b2)   ...

Blocks grow with the depth, so that a long prompt costs few hashes and a short one is told apart
finely; boundaries depend on the position alone, so equal beginnings have equal keys. The root
separates what must not share a cache: tenants, models, adapters. Blocks that are public as a whole
have a root of their own, so that tenants share them. Python's keyed `hash` is enough:
keys never leave the process, and a collision only costs a poorer choice.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

import msgspec

block_plan = ((16, 512), (28, 2048), (48, 4096), (120, 16_384))  # (blocks, bytes of each)
bytes_per_token = 4  # typical; the router's tokens are estimates
prompt_marks = (b'"messages"', b'"prompt"', b'"input"')  # where a body's prompt begins


class PromptPrefix(msgspec.Struct, frozen=True, gc=False):
    """The keys of a prompt's beginnings, and the tokens up to the end of each."""

    keys: tuple[int, ...]
    tokens: tuple[int, ...]  # cumulative, as many as `keys`, growing
    text_bytes: int = 0  # of the whole text that it was made of
    public_count: int = 0  # so many of the first keys are the same for all tenants

    def __bool__(self) -> bool:
        return bool(self.keys)


no_prefix = PromptPrefix((), ())


def _block_ends() -> Iterator[int]:
    end = 0
    for count, size in block_plan:
        for _ in range(count):
            end += size
            yield end


block_ends = tuple(_block_ends())
blocks = tuple(pairwise((0, *block_ends)))  # (start, end)
block_tokens = tuple(end // bytes_per_token for end in block_ends)


def prefix_of_body(body: bytes, root: object) -> PromptPrefix:
    """The prefix of an API request's prompt; `root` is hashed first and separates caches.

    Fields before the prompt differ between callers and are no part of what an engine computes, so
    hashing starts at the first field that carries one."""
    start = prompt_start(body)
    return prefix_of_text(body[start:] if start else body, root)


def prompt_start(body: bytes) -> int:
    """Where an API request's prompt begins; 0 where no field is known to carry one."""
    return next((at for mark in prompt_marks if (at := body.find(mark)) >= 0), 0)


def prefix_of_text(
    text: bytes, root: object, *, public_root: object = None, public_bytes: int = 0
) -> PromptPrefix:
    """The prefix of a prompt's bytes; the part of a last block that is not full is left out.

    So many of the first bytes are public: their full blocks begin at `public_root`."""
    count = bisect_right(block_ends, len(text))
    public_count = bisect_right(block_ends, public_bytes)
    key = hash(public_root)
    keys = [key := hash((key, text[start:end])) for start, end in blocks[:public_count]]
    key = hash((root, key)) if keys else hash(root)
    keys += [key := hash((key, text[start:end])) for start, end in blocks[public_count:count]]
    return PromptPrefix(tuple(keys), block_tokens[:count], len(text), public_count)
