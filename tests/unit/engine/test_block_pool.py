"""The order in which blocks are reused, and what stays findable."""

from headrace.engine.block_pool import BlockPool


def hashed(pool: BlockPool, count: int, name: str) -> list[int]:
    """Allocate blocks whose contents are called name0, name1, ..."""
    blocks = pool.allocate(count)
    for index, block in enumerate(blocks):
        pool.register(block, f"{name}{index}".encode())
    return blocks


def test_released_content_is_found_until_it_is_reused() -> None:
    pool = BlockPool(3)
    blocks = hashed(pool, 2, "a")
    pool.release(blocks)
    assert pool.free_count == 3
    assert pool.find(b"a0") == blocks[0]
    pool.allocate(3)
    assert pool.find(b"a0") is None
    assert pool.find(b"a1") is None


def test_a_tail_is_reused_before_its_head_and_older_before_younger() -> None:
    pool = BlockPool(4)
    older, younger = hashed(pool, 2, "old"), hashed(pool, 2, "new")
    pool.release(older)
    pool.release(younger)
    assert pool.allocate(4) == [older[1], older[0], younger[1], younger[0]]


def test_blocks_without_content_are_reused_first() -> None:
    pool = BlockPool(3)
    cached, plain = hashed(pool, 2, "a"), pool.allocate(1)
    pool.release(cached)
    pool.release(plain)
    assert pool.allocate(1) == plain


def test_a_touched_block_leaves_the_free_list_from_its_middle() -> None:
    pool = BlockPool(3)
    blocks = hashed(pool, 3, "a")
    pool.release(blocks)
    pool.touch([blocks[1]])
    assert not pool.is_free(blocks[1])
    assert pool.allocate(2) == [blocks[2], blocks[0]]
    pool.check_invariants([[blocks[1]], [blocks[2], blocks[0]]])


def test_a_shared_block_is_free_after_its_last_release() -> None:
    pool = BlockPool(2)
    blocks = hashed(pool, 1, "a")
    pool.touch(blocks)
    pool.release(blocks)
    assert pool.used_count == 1
    pool.release(blocks)
    assert pool.used_count == 0


def test_the_first_of_two_equal_contents_stays_the_one_to_be_found() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.register(first, b"same")
    pool.register(second, b"same")
    assert pool.find(b"same") == first
    pool.check_invariants([[first, second]])


def test_forgotten_content_is_not_found() -> None:
    pool = BlockPool(4)
    blocks, others = hashed(pool, 2, "a"), hashed(pool, 1, "b")
    pool.forget(blocks)
    assert pool.find(b"a0") is None
    assert pool.find(b"b0") == others[0]
    pool.forget_all()
    assert pool.find(b"b0") is None
    pool.check_invariants([blocks, others])


def test_exclusive_blocks_are_those_that_no_other_table_holds() -> None:
    pool = BlockPool(6)
    shared, mine, theirs = pool.allocate(1), pool.allocate(2), pool.allocate(1)
    pool.touch(shared)
    assert pool.exclusive_count([shared + mine]) == 2
    assert pool.exclusive_count([shared + mine, shared + theirs]) == 4
