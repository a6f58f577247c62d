"""What endpoints are believed to hold is what they were sent, less what they must have lost."""

import random

from headrace.router.prefix_index import PrefixIndex, capacity_tokens_min, unused_s_max
from headrace.router.prompt_prefix import (
    PromptPrefix,
    block_ends,
    prefix_of_body,
    prefix_of_text,
)


def prefix(*contents: int) -> PromptPrefix:
    """Blocks of 100 tokens."""
    keys = [hash(contents[: depth + 1]) for depth in range(len(contents))]
    return PromptPrefix(tuple(keys), tuple(100 * (depth + 1) for depth in range(len(contents))))


def test_equal_beginnings_have_equal_keys_up_to_the_first_difference() -> None:
    text = random.Random(1).randbytes(300_000)
    changed = text[:100_000] + b"x" + text[100_001:]
    one, other = prefix_of_text(text, "t"), prefix_of_text(changed, "t")
    shared = sum(end <= 100_000 for end in block_ends)
    assert one.keys[:shared] == other.keys[:shared]
    assert one.keys[shared] != other.keys[shared]
    assert set(one.keys).isdisjoint(prefix_of_text(text, "another tenant").keys)


def test_fields_before_the_prompt_do_not_matter() -> None:
    messages = b'"messages":[' + b"a" * 5000 + b"]}"
    one = prefix_of_body(b'{"model":"m","temperature":1,' + messages, "t")
    other = prefix_of_body(b'{"model":"m",' + messages, "t")
    assert one.keys == other.keys
    assert one


def test_a_match_is_as_deep_as_each_endpoint_was_sent() -> None:
    index = PrefixIndex()
    index.sent(0, prefix(1, 2, 3), 0.0)
    index.sent(1, prefix(1, 2), 0.0)
    index.sent(2, prefix(1, 9), 0.0)
    assert index.match(prefix(1, 2, 3, 4), 4) == [300, 200, 100, 0]
    assert index.match(prefix(7), 4) == [0] * 4
    assert index.match(prefix(), 4) == [0] * 4


def test_many_endpoints_match_as_few_do() -> None:
    index = PrefixIndex()
    rng = random.Random(3)
    expected = [0] * 200
    for slot in range(200):
        depth = rng.randrange(4)
        index.sent(slot, prefix(*range(depth)), 0.0)
        expected[slot] = 100 * depth
    assert list(index.match(prefix(0, 1, 2, 3), 200)) == expected


def test_the_deepest_of_the_least_recent_is_forgotten_first() -> None:
    index = PrefixIndex()
    index.sent(0, prefix(1, 2), 0.0, tokens_max=300)
    index.sent(0, prefix(5, 6), 1.0, tokens_max=300)
    assert index.match(prefix(1, 2), 1) == [100]
    assert index.match(prefix(5, 6), 1) == [200]


def test_what_was_not_sent_for_long_is_forgotten() -> None:
    index = PrefixIndex()
    index.sent(0, prefix(1), 0.0)
    index.sent(0, prefix(2), unused_s_max + 1)
    assert index.match(prefix(1), 1) == [0]


def test_each_key_is_forgotten_by_its_own_time_however_often_others_are_sent() -> None:
    index = PrefixIndex()
    for number in range(10):
        index.sent(0, prefix(number), float(number))
    index.sent(0, prefix(3), 10.0)  # again: it is the newest of them now
    for number in range(10):
        now_s = unused_s_max + number + 0.5
        index.sent(0, prefix(99), now_s)
        left = [known for known in range(10) if index.match(prefix(known), 1) == [100]]
        assert left == sorted({*range(number + 1, 10), 3})
    index.sent(0, prefix(99), unused_s_max + 10.5)
    assert index.match(prefix(3), 1) == [0]


def test_wrong_predictions_shrink_what_is_believed() -> None:
    index = PrefixIndex()
    for content in range(100):
        index.sent(0, prefix(content), 0.0)
    for _ in range(60):
        index.observe(0, 100, 0)
    index.sent(0, prefix(1000), 0.0)
    held = sum(index.match(prefix(content), 1)[0] for content in range(100))
    assert held <= capacity_tokens_min


def test_an_endpoint_that_is_gone_leaves_nothing() -> None:
    index = PrefixIndex()
    index.sent(0, prefix(1, 2), 0.0)
    index.forget(0)
    assert index.key_count == 0


def test_an_engine_that_says_how_much_it_keeps_is_believed_to_have_lost_the_oldest() -> None:
    index = PrefixIndex()
    index.sent(0, prefix(1, 2), 0.0)
    index.sent(0, prefix(5, 6), 1.0)
    index.holds_at_most(0, 160)
    assert index.match(prefix(5, 6), 1) == [200]
    assert index.match(prefix(1, 2), 1) == [0]
    index.sent(0, prefix(7), unused_s_max + 10)
    assert index.match(prefix(5, 6), 1) == [200], "what it keeps does not get old"
