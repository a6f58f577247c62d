"""The block pool against a slow model that keeps the eviction order as a plain list."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.engine.block_pool import BlockPool


class BlockPoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 8))
    def build(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.num_blocks = num_blocks
        self.tables: list[list[int]] = []
        self.reuse_order = list(range(num_blocks))
        self.content: dict[int, bytes] = {}  # what can be found, by block

    @rule(count=st.integers(0, 8))
    def allocate(self, count: int) -> None:
        count = min(count, self.pool.free_count)
        blocks = self.pool.allocate(count)
        assert blocks == self.reuse_order[:count]
        del self.reuse_order[:count]
        for block in blocks:
            self.content.pop(block, None)
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        for block in reversed(table):
            if not any(block in other for other in self.tables):
                place = len(self.reuse_order) if block in self.content else 0
                self.reuse_order.insert(place, block)

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data(), name=st.binary(min_size=1, max_size=1))
    def register(self, data: st.DataObject, name: bytes) -> None:
        block = data.draw(st.sampled_from(sorted({b for table in self.tables for b in table})))
        self.pool.register(block, name)
        if block not in self.content and name not in self.content.values():
            self.content[block] = name

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        names = data.draw(st.sets(st.sampled_from(sorted(self.content.values())), min_size=1))
        found = [self.pool.find(name) for name in sorted(names)]
        blocks = [block for block in found if block is not None]
        assert len(blocks) == len(names)
        self.pool.touch(blocks)
        self.tables.append(blocks)
        self.reuse_order = [block for block in self.reuse_order if block not in blocks]

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.content)))
        self.pool.forget([block])
        del self.content[block]

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants(self.tables)
        assert self.pool.free_count == len(self.reuse_order)
        assert self.pool.used_count == self.num_blocks - len(self.reuse_order)
        for block, name in self.content.items():
            assert self.pool.find(name) == block
        held = {block for table in self.tables for block in table}
        assert self.pool.exclusive_count(self.tables) == len(held)


BlockPoolMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, print_blob=True
)
TestBlockPoolMachine = BlockPoolMachine.TestCase
