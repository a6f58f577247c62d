"""What an operator marked public is shared by all tenants, and nothing else is."""

from headrace.base.prefix_hash import block_hashes, public_salt
from headrace.engine.kv_cache import KvCache
from headrace.engine.request import Adapter, EngineRequest, SamplingParams
from headrace.engine.sequence import Sequence

block_size = 4
public = tuple(range(10))  # two blocks and a half


def cache_with(*prompts: tuple[int, ...], salt_blocks_max: int | None = None) -> KvCache:
    return KvCache(32, block_size, b"key", "m1", salt_blocks_max, public_prompts=prompts)


def sequence_of(*tokens: int, salt: str, adapter: Adapter | None = None) -> Sequence:
    request = EngineRequest(
        "r", tokens, SamplingParams(max_tokens=8), cache_salt=salt, adapter=adapter
    )
    return Sequence(request, 1, 0.0, 8)


def compute(cache: KvCache, sequence: Sequence) -> None:
    cache.admit(sequence, cache.find_prefix(sequence))
    sequence.computed = sequence.total
    cache.commit(sequence)
    cache.release(sequence)
    cache.check_invariants([])


def test_tenants_share_the_public_blocks_and_keep_their_own() -> None:
    cache = cache_with(public)
    compute(cache, sequence_of(*public, *range(50, 60), salt="a"))
    assert len(cache.find_prefix(sequence_of(*public, *range(50, 60), salt="b")).blocks) == 2
    assert len(cache.find_prefix(sequence_of(*public, *range(50, 60), salt="a")).blocks) == 4


def test_who_has_the_key_names_the_blocks_as_the_engine_does() -> None:
    prompt = [*public, *range(50, 60)]
    sequence = sequence_of(*prompt, salt="a")
    cache_with(public).find_prefix(sequence)
    named = block_hashes(b"key", "m1", "a", prompt, block_size, public_token_count=len(public))
    assert sequence.block_hashes == named[: len(sequence.block_hashes)]
    others = block_hashes(b"key", "m1", "b", prompt, block_size, public_token_count=len(public))
    assert [mine == yours for mine, yours in zip(named, others, strict=True)] == [True] * 2 + [
        False
    ] * 3


def test_what_differs_from_the_public_prompt_is_the_tenants_own() -> None:
    cache = cache_with(public)
    compute(cache, sequence_of(*range(8), 77, 78, salt="a"))
    assert len(cache.find_prefix(sequence_of(*range(8), 77, 78, salt="b")).blocks) == 2
    compute(cache, sequence_of(99, *range(1, 10), salt="a"))
    assert cache.find_prefix(sequence_of(99, *range(1, 10), salt="b")).blocks == []


def test_without_a_mark_nothing_is_public() -> None:
    cache = cache_with()
    compute(cache, sequence_of(*public, salt="a"))
    assert cache.find_prefix(sequence_of(*public, salt="b")).blocks == []
    sequence = sequence_of(*public, salt="b")
    cache.find_prefix(sequence)
    assert sequence.block_hashes == block_hashes(b"key", "m1", "b", public[:8], block_size)


def test_public_blocks_are_in_no_tenants_share_and_survive_its_purge() -> None:
    cache = cache_with(public, salt_blocks_max=4)
    compute(cache, sequence_of(*public, *range(50, 60), salt="a"))
    assert cache.pool.owned_count(public_salt) == 2
    assert cache.pool.owned_count("a") == 3
    cache.pool.forget_owner("a")
    assert len(cache.find_prefix(sequence_of(*public, 1, salt="a")).blocks) == 2


def test_an_adapter_shares_with_itself_alone() -> None:
    cache = cache_with(public)
    compute(cache, sequence_of(*public, salt="a"))
    adapted = sequence_of(*public, salt="b", adapter=Adapter(0, "v1"))
    assert cache.find_prefix(adapted).blocks == []
    compute(cache, adapted)
    again = sequence_of(*public, salt="c", adapter=Adapter(1, "v1"))
    assert len(cache.find_prefix(again).blocks) == 2
