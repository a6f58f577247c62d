"""What may be shared, with whom, and what it costs."""

from headrace.base.prefix_hash import block_hashes
from headrace.engine.kv_cache import KvCache
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.sequence import Sequence

block_size = 4


def make_cache(num_blocks: int = 16, key: bytes | None = b"key", namespace: str = "m1") -> KvCache:
    return KvCache(num_blocks, block_size, key, namespace)


def make_sequence(*tokens: int, salt: str = "") -> Sequence:
    request = EngineRequest("r", tokens, SamplingParams(max_tokens=8), cache_salt=salt)
    return Sequence(request, 1, 0.0, 8)


def compute(cache: KvCache, sequence: Sequence) -> None:
    """Admit a sequence and let all its tokens be computed."""
    cache.admit(sequence, cache.find_prefix(sequence))
    sequence.computed = sequence.total
    cache.commit(sequence)


def hit_count(cache: KvCache, sequence: Sequence) -> int:
    return len(cache.find_prefix(sequence).blocks)


def test_a_common_prefix_is_shared_in_whole_blocks() -> None:
    cache = make_cache()
    first = make_sequence(*range(10))
    compute(cache, first)
    second = make_sequence(*range(9), 99)
    assert cache.find_prefix(second).blocks == first.blocks[:2]
    cache.admit(second, cache.find_prefix(second))
    assert second.computed == 8
    assert second.blocks[:2] == first.blocks[:2]
    cache.check_invariants([first, second])


def test_a_difference_in_the_first_block_hides_equal_later_ones() -> None:
    cache = make_cache()
    compute(cache, make_sequence(*range(12)))
    assert hit_count(cache, make_sequence(99, *range(1, 12))) == 0


def test_a_hit_never_covers_the_last_token() -> None:
    cache = make_cache()
    compute(cache, make_sequence(*range(8)))
    assert hit_count(cache, make_sequence(*range(8))) == 1
    assert hit_count(cache, make_sequence(*range(9))) == 2


def test_content_is_not_found_before_it_is_computed() -> None:
    cache = make_cache()
    first, second = make_sequence(*range(12)), make_sequence(*range(12))
    cache.admit(first, cache.find_prefix(first))
    first.computed = 6
    cache.commit(first)
    assert hit_count(cache, second) == 1
    assert cache.promised_by(second, 1) is first


def test_promises_end_with_the_promiser() -> None:
    cache = make_cache()
    first, second = make_sequence(*range(12)), make_sequence(*range(12))
    cache.admit(first, cache.find_prefix(first))
    assert hit_count(cache, second) == 0
    cache.release(first)
    assert cache.promised_by(second, 0) is None
    cache.check_invariants([])


def test_another_salt_never_hits_and_the_same_salt_does() -> None:
    cache = make_cache()
    compute(cache, make_sequence(*range(12), salt="tenant-a"))
    assert hit_count(cache, make_sequence(*range(12), salt="tenant-b")) == 0
    assert hit_count(cache, make_sequence(*range(12))) == 0
    assert hit_count(cache, make_sequence(*range(12), salt="tenant-a")) == 2


def test_hashes_differ_by_key_namespace_and_where_it_ends() -> None:
    chains = set()
    for key, namespace, salt in (
        (b"key", "m1", ""),
        (b"other", "m1", ""),
        (b"key", "m2", ""),
        (b"key", "m1", "x"),
        (b"key", "m1x", ""),
    ):
        cache, sequence = make_cache(key=key, namespace=namespace), make_sequence(1, 2, 3, 4, 5)
        sequence = make_sequence(1, 2, 3, 4, 5, salt=salt)
        cache.find_prefix(sequence)
        chains.add(sequence.block_hashes[0])
    assert len(chains) == 5
    assert {len(content_hash) for content_hash in chains} == {16}


def test_evictable_hits_cost_what_new_blocks_do() -> None:
    cache = make_cache(num_blocks=4)
    first = make_sequence(*range(12))
    compute(cache, first)
    second = make_sequence(*range(12), 50)
    hits = cache.find_prefix(second).blocks
    assert cache.admission_cost(second, hits) == 1  # three are in use anyway
    cache.release(first)
    assert cache.admission_cost(second, hits) == 4  # all four leave the free list


def test_generated_tokens_are_shared_too() -> None:
    cache = make_cache()
    first = make_sequence(*range(6))
    compute(cache, first)
    for token in (70, 71, 72):
        first.tokens.append(token)
        assert cache.grow(first)
        first.computed = first.total
        cache.commit(first)
    cache.release(first)
    assert hit_count(cache, make_sequence(*range(6), 70, 71, 72)) == 2


def test_grow_fails_only_when_a_new_block_is_needed_and_none_is_free() -> None:
    cache = make_cache(num_blocks=2)
    sequence = make_sequence(*range(7))
    compute(cache, sequence)
    sequence.tokens.append(7)
    assert cache.grow(sequence)
    sequence.tokens.append(8)
    assert not cache.grow(sequence)


def test_release_twice_is_release_once() -> None:
    cache = make_cache()
    sequence = make_sequence(*range(7))
    compute(cache, sequence)
    cache.release(sequence)
    cache.release(sequence)
    assert cache.pool.used_count == 0
    cache.check_invariants([])


def test_without_a_key_nothing_is_shared() -> None:
    cache = make_cache(key=None)
    compute(cache, make_sequence(*range(12)))
    assert hit_count(cache, make_sequence(*range(12))) == 0


def test_a_router_with_the_key_names_the_same_blocks() -> None:
    cache = make_cache()
    cache.pool.changes = []
    compute(cache, make_sequence(*range(10), salt="tenant"))
    stored = [change.content_hash for change in cache.pool.changes if change.stored]
    assert stored == block_hashes(b"key", "m1", "tenant", range(10), block_size)


def test_changes_say_what_can_be_found_at_any_time() -> None:
    cache = make_cache(num_blocks=4)
    cache.pool.changes = []
    for start in (0, 100, 200, 0):
        sequence = make_sequence(*range(start, start + 12))
        compute(cache, sequence)
        cache.release(sequence)
    held: set[bytes] = set()
    for change in cache.pool.changes:
        assert (change.content_hash in held) is not change.stored
        (held.add if change.stored else held.remove)(change.content_hash)
    assert all(cache.pool.find(content_hash) is not None for content_hash in held)
    assert held


def test_one_tenants_part_of_the_cache_is_forgotten_alone() -> None:
    cache = make_cache()
    for salt in ("a", "b"):
        sequence = make_sequence(*range(10), salt=salt)
        compute(cache, sequence)
        cache.release(sequence)
    cache.pool.forget_owner("a")
    assert hit_count(cache, make_sequence(*range(10), salt="a")) == 0
    assert hit_count(cache, make_sequence(*range(10), salt="b")) == 2


def test_a_tenant_over_its_share_evicts_its_own_oldest_blocks_not_anothers() -> None:
    cache = KvCache(16, block_size, b"key", "m1", salt_blocks_max=4)
    other = make_sequence(*range(50, 60), salt="b")
    compute(cache, other)
    cache.release(other)
    for start in (0, 100, 200):
        sequence = make_sequence(*range(start, start + 9), salt="a")
        compute(cache, sequence)
        cache.release(sequence)
        cache.check_invariants([])
    assert cache.pool.owned_count("a") == 4
    assert hit_count(cache, make_sequence(*range(9), salt="a")) == 0
    assert hit_count(cache, make_sequence(*range(200, 209), salt="a")) == 2
    assert hit_count(cache, make_sequence(*range(50, 60), salt="b")) == 2


def test_a_share_that_is_in_use_is_not_exceeded() -> None:
    cache = KvCache(16, block_size, b"key", "m1", salt_blocks_max=2)
    running = [make_sequence(*range(start, start + 9), salt="a") for start in (0, 100)]
    for sequence in running:
        compute(cache, sequence)
    assert cache.pool.owned_count("a") == 2
    cache.check_invariants(running)
