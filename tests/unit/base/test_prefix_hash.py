from hashlib import blake2b

from headrace.base.prefix_hash import block_hashes

key = b"k" * 32


def test_the_hashes_are_the_documented_function_of_the_tokens() -> None:
    root = blake2b(
        (2).to_bytes(8, "little") + b"m1" + b"tenant",
        digest_size=16,
        key=key,
        person=b"headrace kv root",
    ).digest()
    expected = []
    parent = root
    for tokens in ((1, 2), (3, 70_000)):
        data = b"".join(token.to_bytes(4, "little") for token in tokens)
        parent = blake2b(
            parent + data, digest_size=16, key=key, person=b"headrace kvblock"
        ).digest()
        expected.append(parent)
    assert block_hashes(key, "m1", "tenant", [1, 2, 3, 70_000, 5], 2) == expected


def test_key_namespace_and_salt_change_every_hash() -> None:
    tokens = list(range(8))
    chains = [
        block_hashes(key, "m1", "", tokens, 4),
        block_hashes(b"q" * 32, "m1", "", tokens, 4),
        block_hashes(key, "m2", "", tokens, 4),
        block_hashes(key, "m1", "t", tokens, 4),
        block_hashes(key, "m", "1", tokens, 4),
    ]
    assert len({content_hash for chain in chains for content_hash in chain}) == 10
