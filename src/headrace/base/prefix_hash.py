"""The hash that names a KV block's content, the same in every engine and router with the same key.

    root    = H("headrace kv root", length of namespace (8 bytes, little-endian), namespace, salt)
    root    = H("headrace kv lora", root, adapter)   of requests for an adapter, by its digest
    hash[0] = H("headrace kvblock", root, tokens[0:b])
    hash[i] = H("headrace kvblock", hash[i-1], tokens[i*b:(i+1)*b])

H is BLAKE2b of 128 bits under a secret key, its first argument the personalisation; tokens are
little-endian 32-bit integers. Blocks that an operator marked public have `public_salt`, which is no
tenant's; the first block after them starts at the root of the last public hash, in hexadecimal, as
namespace. So nobody without the key can compute a hash, or make two prompts
collide; namespaces (model versions), adapters and salts (tenants) share nothing. See
docs/concepts/prefix-cache.md.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

hash_bytes = 16
public_salt = "\0public"  # of no tenant
key_bytes_min, key_bytes_max = 16, 64  # of the secret key


def root_hash(key: bytes, namespace: str, salt: str, adapter: str = "") -> bytes:
    """Where a salt's chains start, without an adapter or with the one of that digest."""
    name = namespace.encode()
    root = blake2b(
        len(name).to_bytes(8, "little") + name + salt.encode(),
        digest_size=hash_bytes,
        key=key,
        person=b"headrace kv root",
    ).digest()
    if not adapter:
        return root
    return blake2b(
        root + adapter.encode(), digest_size=hash_bytes, key=key, person=b"headrace kv lora"
    ).digest()


def next_hash(key: bytes, parent: bytes, tokens: "array[int]") -> bytes:
    """The hash of a full block after `parent`; `tokens` are 32-bit integers."""
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return blake2b(
        parent + tokens.tobytes(), digest_size=hash_bytes, key=key, person=b"headrace kvblock"
    ).digest()


def block_hashes(
    key: bytes,
    namespace: str,
    salt: str,
    token_ids: Sequence[int],
    block_size_tokens: int,
    *,
    adapter: str = "",
    public_token_count: int = 0,
) -> list[bytes]:
    """The hashes of a prompt's full blocks, the first one first.

    So many of its first tokens are public."""
    public_end = public_token_count // block_size_tokens * block_size_tokens
    parent = root_hash(key, namespace, public_salt if public_end else salt, adapter)
    hashes: list[bytes] = []
    for start in range(0, len(token_ids) - block_size_tokens + 1, block_size_tokens):
        if start == public_end and public_end:
            parent = root_hash(key, parent.hex(), salt, adapter)
        parent = next_hash(key, parent, array("i", token_ids[start : start + block_size_tokens]))
        hashes.append(parent)
    return hashes


def public_token_count(tokens: "array[int]", public_prompts: "Iterable[array[int]]") -> int:
    """How many tokens a prompt begins with in common with one of those that are public."""
    return max((common_count(tokens, public) for public in public_prompts), default=0)


def common_count(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items two sequences of one type begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
