"""An exact match of prompts by what engines say they hold."""

import random

from headrace.base.prefix_hash import block_hashes
from headrace.router.block_index import BlockIndex, promise_s
from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Work
from headrace.router.picker import Picker
from headrace.router.prompt_prefix import PromptPrefix, prefix_of_text

key = b"k" * 32
size = 16


def text_of(word: str, count: int) -> bytes:
    return (word * 8)[:8].encode() * (count // 2)


def prompt(first: str, second: str = "") -> tuple[PromptPrefix, bytes, list[int], list[bytes]]:
    """4 KiB that begins with one text and goes on with another, a token for each 4 bytes."""
    text = text_of(first, 1024)[:2048] + text_of(second or first, 1024)[:2048]
    tokens = [int.from_bytes(text[i : i + 4], "little") & 0xFFFF for i in range(0, len(text), 4)]
    return prefix_of_text(text, "tenant"), text, tokens, block_hashes(key, "m", "s", tokens, size)


def learnt(*prompts: tuple[PromptPrefix, bytes, list[int], list[bytes]]) -> BlockIndex:
    index = BlockIndex()
    index.block_size_tokens = size
    for prefix, _, tokens, hashes in prompts:
        index.learn(prefix, len(tokens), hashes)
    return index


def matched(index: BlockIndex, prefix: PromptPrefix, believed: list[int]) -> list[int]:
    count = len(believed)
    return list(index.match(prefix, (1 << count) - 1, count, lambda: list(believed)))


def test_an_engine_that_holds_a_prompts_blocks_matches_nearly_all_of_it() -> None:
    prefix, _, tokens, hashes = one = prompt("abc")
    index = learnt(one)
    index.told(0, hashes, (), 0.0)
    index.told(1, (), (), 0.0)
    exact = matched(index, prefix, [999, 999, 7])
    assert exact == [len(tokens), 0, 7], "slot 2 does not tell: belief stays"
    held = [index.held_tokens(slot, prefix) for slot in range(3)]
    assert held == [len(tokens) - size, 0, None]


def test_a_shared_beginning_matches_to_where_the_prompts_part() -> None:
    one, other = prompt("abc", "def"), prompt("abc", "xyz")
    index = learnt(one, other)
    index.told(0, one[3], (), 0.0)
    (shared,) = matched(index, other[0], [0])
    assert shared == 512


def test_no_tenants_own_block_is_what_a_public_beginning_means() -> None:
    text = text_of("abc", 1024)
    tokens = list(range(len(text) // 4))
    public_tokens = 200  # of the 256 that the text's public half has by its share of bytes
    own = prefix_of_text(text, "ann", public_root="m", public_bytes=1024)
    other = prefix_of_text(text, "bob", public_root="m", public_bytes=1024)
    hashes = block_hashes(key, "m", "ann", tokens, size, public_token_count=public_tokens)
    index = BlockIndex()
    index.block_size_tokens = size
    index.learn(own, len(tokens), hashes, public_token_count=public_tokens)
    index.told(0, hashes[: public_tokens // size], (), 0.0)  # and nothing of Ann's own
    assert matched(index, own, [0]) == [256]
    assert index.held_tokens(0, own) == public_tokens // size * size
    assert index.is_understood(PromptPrefix(other.keys[: own.public_count], ()))
    assert not index.is_understood(other)


def test_removed_blocks_match_no_more_and_a_missing_block_ends_a_match() -> None:
    prefix, _, _, hashes = one = prompt("abc")
    index = learnt(one)
    index.told(0, hashes, hashes[:7], 0.0)  # of the first block of text
    assert matched(index, prefix, [500]) == [0]


def test_what_was_sent_counts_until_the_engine_had_time_to_tell() -> None:
    prefix, _, _, hashes = one = prompt("abc")
    index = learnt(one)
    index.told(0, (), (), 0.0)
    index.sent(0, prefix, 1.0)
    assert matched(index, prefix, [0])[0] > 900
    index.told(0, (), (), 1.0 + promise_s + 0.1)
    assert matched(index, prefix, [0]) == [0]
    index.sent(0, prefix, 10.0)
    index.told(0, hashes, (), 10.5)
    index.told(0, (), (), 100.0)
    assert matched(index, prefix, [0])[0] > 900


def test_a_text_that_is_not_understood_is_left_to_belief() -> None:
    prefix, _, _, hashes = one = prompt("abc")
    index = learnt(one)
    index.told(0, hashes, (), 0.0)
    stranger = prompt("new")[0]
    assert not index.is_understood(stranger)
    assert index.is_understood(prefix)
    assert matched(index, stranger, [300]) == [300]


def test_an_endpoint_that_is_gone_is_forgotten() -> None:
    prefix, _, _, hashes = one = prompt("abc")
    index = learnt(one)
    index.told(0, hashes, (), 0.0)
    index.sent(0, prefix, 0.0)
    index.forget(0)
    assert not index.telling
    assert matched(index, prefix, [5]) == [5]


def test_it_agrees_with_a_set_of_sets() -> None:
    rng = random.Random(7)
    prompts = [prompt(a, b) for a in ("abc", "def") for b in ("ghi", "jkl", "mno")]
    index = learnt(*prompts)
    held: dict[int, set[bytes]] = {slot: set() for slot in range(5)}
    for _ in range(300):
        slot, (prefix, _, _, hashes) = rng.randrange(5), rng.choice(prompts)
        depth = 6 + 8 * rng.randrange(len(hashes) // 8)  # where a block of the text ends
        stored, removed = (hashes, []) if rng.random() < 0.5 else ([], hashes[depth:])
        held[slot] = (held[slot] | set(stored)) - set(removed)
        index.told(slot, stored, removed, 0.0)
        for place, blocks in held.items():
            whole = next((i for i, block in enumerate(hashes) if block not in blocks), len(hashes))
            told = index.held_tokens(place, prefix) or 0
            assert told == max(0, whole // 8 * 8 - 1) * size


def test_the_picker_goes_where_the_blocks_are_by_the_engines_word() -> None:
    endpoints = EndpointSet()
    endpoints.update(EndpointSpec(f"rep_{i}", "ver", f"http://{i}") for i in range(8))
    pool = endpoints.whole_pool("ver")
    assert pool is not None
    prefix, _, tokens, hashes = prompt("abc")
    pool.blocks.block_size_tokens = size
    pool.blocks.learn(prefix, len(tokens), hashes)
    for endpoint in pool.members:
        pool.blocks.told(endpoint.slot, hashes if endpoint.spec.id == "rep_5" else (), (), 0.0)
    picker = Picker(endpoints, random.Random(1))
    lease = picker.lease([("ver", 1)], Work(len(tokens), 16, prefix), 0.0)
    assert lease.endpoint.spec.id == "rep_5"
    assert (lease.predicted_tokens, lease.told_tokens) == (len(tokens), len(tokens) - size)
    picker.answered(lease, len(tokens) - size)
    assert picker.predictions.missed_tokens == picker.predictions.surprise_tokens == 0


def test_nobody_is_asked_for_beliefs_where_all_is_told() -> None:
    prefix, _, tokens, hashes = one = prompt("abc")
    index = learnt(one)
    for slot in range(3):
        index.told(slot, hashes, (), 0.0)

    def believe() -> list[int]:
        raise AssertionError("not needed")

    assert index.match(prefix, 0b101, 3, believe)[::2] == [len(tokens)] * 2
