"""The hash that names a KV block's content, the same in every engine and router with the same key.

    root    = H("headrace kv root", length of namespace (8 bytes, little-endian), namespace, salt)
    root    = H("headrace kv lora", root, adapter)   of requests for an adapter, by its digest
    hash[0] = H("headrace kvblock", root, tokens[0:b])
    hash[i] = H("headrace kvblock", hash[i-1], tokens[i*b:(i+1)*b])

H is BLAKE2b of 128 bits under a secret key, its first argument the personalisation; tokens are
little-endian 32-bit integers. So nobody without the key can compute a hash, or make two prompts
collide; namespaces (model versions), adapters and salts (tenants) share nothing. See
docs/concepts/prefix-cache.md.
"""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

hash_bytes = 16
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
) -> list[bytes]:
    """The hashes of a prompt's full blocks, the first one first."""
    parent, hashes = root_hash(key, namespace, salt, adapter), []
    for start in range(0, len(token_ids) - block_size_tokens + 1, block_size_tokens):
        parent = next_hash(key, parent, array("i", token_ids[start : start + block_size_tokens]))
        hashes.append(parent)
    return hashes
