"""Which sequences get how many rows in the next step, and who must give way when blocks run out.

    1. A waiting request of a strictly higher class than a running one may take its place or its
       blocks. It is then running like the others.
    2. Running sequences, in order (class, arrival): one row to each that decodes, what is left
       of the row budget to chunks. One that cannot get its next block preempts the last of the
       order, which is of the lowest class and the youngest in it; that may be itself.
    3. Only if nothing was preempted: waiting ones, in the same order, while the whole of their
       tokens fits.

Progress: the first of the order is never preempted by rule 2, and by rule 1 only for a higher
class. Every request fits the pool alone (`intake.py`). So the oldest of the top class always
finishes, and by induction so does everyone, as long as higher classes leave room. Rule 1 compares
classes only, never arrival times, so equals do not evict each other in turn.

Ageing: a request rises one class for each `aging_s` since it arrived, as far as class 0, the
default. So a stream of higher ones delays it and cannot starve it. Running ones rise too, or else a
younger one of the same class would rise above them while it waits, and evict them.

The choices of one prompt wait until the first of them has computed it, then copy it.

What was preempted `preemptions_max` times goes before the others of its class from then on, oldest
first, so that nobody's work is thrown away for ever: the first of the order is then the oldest of
those, and each that goes before the oldest of all has lost its place so often before.

Preemption is partial: all blocks may be taken, and the deepest are taken first; what nobody took
until the sequence runs again is its own again, to the token. Else what was copied to host memory
(`host_store.py`) is copied back; else it is computed again.
"""

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from headrace.base.clock import Clock
from headrace.engine.growth import GrowthEstimate
from headrace.engine.host_store import HostStore
from headrace.engine.kv_cache import KvCache, Prefix
from headrace.engine.runner import RunnerInfo
from headrace.engine.sequence import Sequence, SequenceState
from headrace.engine.speculation import Proposer, Speculator
from headrace.engine.step_time import StepTime

deferred_max = 32  # requests passed over in a step because another computes their prefix right now
chunk_rows_min = 16  # a prompt gets on, however slow a step is
aging_check_share = 0.1  # of `aging_s`: how often every request is looked at
order_of = attrgetter("order")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What an operator may choose; the runner's own limits cap it."""

    prefix_cache_key: bytes | None  # 16 to 64 secret random bytes; None turns prefix caching off
    cache_namespace: str = ""  # model version and whatever else changes the KV
    step_rows: int = 128  # rows (tokens) of one step: throughput against the pause of decoders
    sequences_max: int = 128  # running at once
    waiting_max: int = 1024  # queued at once; more are refused with RateLimited
    aging_s: float = 30.0  # a request rises one class each, up to class 0
    salt_blocks_max: int | None = None  # reusable blocks that a tenant keeps; None is no limit
    draft_tokens_max: int = 0  # guessed tokens of a sequence and step; 0 turns speculation off
    target_step_s: float | None = None  # a prompt's chunk beside decodes is cut to this
    public_prompts: tuple[tuple[int, ...], ...] = ()  # whose KV all tenants share
    host_blocks_max: int = 0  # of preempted sequences, kept in host memory; 0 keeps none
    kv_fingerprint: bytes | None = None  # of an engine whose KV goes to others and comes from them


class ScheduledSequence(NamedTuple):
    """One sequence's share of a step."""

    sequence: Sequence
    row_count: int


class Scheduler:
    """The waiting queue, the running list and the rules between them; computes nothing itself."""

    def __init__(
        self, config: SchedulerConfig, info: RunnerInfo, proposer: Proposer, clock: Clock
    ) -> None:
        self.kv = KvCache(
            info.num_blocks,
            info.block_size_tokens,
            config.prefix_cache_key,
            config.cache_namespace,
            config.salt_blocks_max,
            public_prompts=config.public_prompts,
        )
        self.rows_max = min(config.step_rows, info.rows_max)
        # Never more decoders than rows, so that a prefill among the running always advances.
        self.running_max = min(config.sequences_max, info.sequences_max, self.rows_max)
        # To the runner a draft, or a row with a log-probability, is a sequence of its own.
        self.parts_max = min(info.sequences_max, self.rows_max)
        self.speculator: Speculator | None = None
        if config.draft_tokens_max:
            self.speculator = Speculator(proposer, config.draft_tokens_max, clock)
        self.step_time = StepTime()
        self.host: HostStore | None = None
        self._admitted: set[Sequence] = set()  # by the schedule that is being made
        self._target_step_s = config.target_step_s
        self._parts_left = 0
        self.only_decodes = False  # the step that was scheduled last
        self.deferred_count = 0  # waiting ones that it passed over: another computes their prefix
        self.waiting: list[Sequence] = []  # sorted by order
        self.running: list[Sequence] = []  # sorted by order
        self.preemption_count = 0
        self._aging_s = config.aging_s
        self._next_aging_s = 0.0
        self._growth = GrowthEstimate(info.block_size_tokens)
        self._free_slots = list(range(self.running_max - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind those of its class that came before."""
        sequence.state = SequenceState.WAITING
        insort(self.waiting, sequence, key=order_of)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, with all that it holds. Idempotent."""
        if sequence.state is SequenceState.WAITING:
            if sequence in self.waiting:  # else it is still on its way to `add`
                self.waiting.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self._stop_running(sequence)
        if self.speculator is not None:
            self.speculator.forget(sequence)
        if self.host is not None:
            self.host.forget(sequence)
        sequence.state = SequenceState.FINISHED

    def schedule(self, now_s: float) -> list[ScheduledSequence]:
        """Choose the next step's rows, decoding sequences first, then chunks."""
        if now_s >= self._next_aging_s:
            self._next_aging_s = now_s + self._aging_s * aging_check_share
            self._age(now_s)
        preemptions_before = self.preemption_count
        if self._admitted:
            self._admitted.clear()
        self.deferred_count = 0
        # Each sequence of this step is a part; where none waits, those that run are all of them.
        self._parts_left = self.parts_max - (
            self.running_max if self.waiting else len(self.running)
        )
        self._admit_above_lower_classes()
        decodes, chunks, rows_left = self._schedule_running()
        if self.preemption_count == preemptions_before:
            self._admit_waiting(chunks, rows_left)
            self._growth.quiet_step()
            if self.speculator is not None and not chunks:
                self._draft(self.speculator, decodes, rows_left)
        self.only_decodes = not chunks
        return decodes + chunks

    def record_step(self, rows: int, run_s: float) -> None:
        """Learn from what the step that was scheduled last took."""
        self.step_time.record(rows, run_s)
        if self.speculator is not None:
            self.speculator.record_step(rows, run_s, only_decodes=self.only_decodes)

    def end_step(self, seconds: float) -> None:
        """The step's samples are taken in; it took so long in all."""
        if self.speculator is not None and self.only_decodes:
            self.speculator.end_step(seconds)

    def check_invariants(self) -> None:
        """Assert what must hold between steps; for tests."""
        self.kv.check_invariants(self.running)
        assert len(self.running) <= self.running_max
        assert sorted(self.waiting, key=order_of) == self.waiting
        assert sorted(self.running, key=order_of) == self.running
        slots = [sequence.slot for sequence in self.running]
        assert sorted(slots + self._free_slots) == list(range(self.running_max))
        if self.host is not None:
            self.host.check_invariants(self.waiting)
        for sequence in self.waiting:
            assert sequence.state is SequenceState.WAITING
            assert not sequence.blocks, "a waiting sequence holds blocks"
            assert sequence.computed == 0
        for sequence in self.running:
            assert sequence.state is SequenceState.RUNNING
            assert sequence.computed < sequence.total, "a running sequence has nothing to compute"
            assert sequence.completion_count < sequence.max_tokens
            assert sequence.committed_blocks <= len(sequence.blocks)

    def _age(self, now_s: float) -> None:
        for sequence in [*self.waiting, *self.running]:
            risen = int((now_s - sequence.arrival_s) / self._aging_s)
            aged = max(0, sequence.request.priority - risen)
            if aged < sequence.priority:
                sequence.move_to_class(aged)
        self.waiting.sort(key=order_of)
        self.running.sort(key=order_of)

    def _schedule_running(self) -> tuple[list[ScheduledSequence], list[ScheduledSequence], int]:
        decodes: list[ScheduledSequence] = []
        chunks: list[ScheduledSequence] = []
        running = self.running
        rows_left = self._chunk_rows(sum(s.computed + 1 == s.total for s in running))
        index = 0
        while index < len(running):
            sequence = running[index]
            if not self._grow(sequence):
                break  # it was the last and has preempted itself
            wanted = sequence.total - sequence.computed
            if wanted == 1:
                decodes.append(ScheduledSequence(sequence, 1))
            elif rows_left:
                chunks.append(self._chunk(sequence, rows_left))
                rows_left -= chunks[-1].row_count
            index += 1
        return decodes, chunks, rows_left

    def _chunk_rows(self, decode_count: int) -> int:
        """Rows for chunks beside these decodes, which must not wait for longer than the target."""
        rows = self.rows_max - decode_count
        if self._target_step_s is None or not decode_count:
            return rows
        within = self.step_time.rows_within(self._target_step_s, self.rows_max)
        return min(rows, max(chunk_rows_min, within - decode_count))

    def _chunk(self, sequence: Sequence, rows_left: int) -> ScheduledSequence:
        row_count = min(sequence.total - sequence.computed, rows_left)
        if sequence.awaited_logprobs(row_count):
            row_count = min(row_count, 1 + self._parts_left)
            self._parts_left -= row_count - 1
        return ScheduledSequence(sequence, row_count)

    def _draft(
        self, speculator: Speculator, decodes: list[ScheduledSequence], rows_left: int
    ) -> None:
        self.kv.spare_blocks = len(self.running)
        speculator.draft(
            [sequence for sequence, _ in decodes],
            min(rows_left, self._parts_left),
            self.kv.extend,
        )

    def _grow(self, sequence: Sequence) -> bool:
        """Get the block for the sequence's next row, if need be from others; False: it gave way."""
        while not self.kv.grow(sequence):
            victim = self.running[-1]
            self._growth.preempted()
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _admit_waiting(self, chunks: list[ScheduledSequence], rows_left: int) -> None:
        deferred = 0
        index = 0
        while rows_left and index < len(self.waiting):
            sequence = self.waiting[index]
            if _awaits_leader(sequence):
                self.deferred_count += 1
                index += 1
                continue
            found = self.kv.find_prefix(sequence)
            if self._is_deferred(sequence, found):
                deferred += 1
                self.deferred_count += 1
                index += 1
                if deferred == deferred_max:
                    break
                continue
            if not self._has_room(sequence, found, self._reserve(sequence)):
                break
            self._admit(sequence, found)
            chunks.append(self._chunk(sequence, rows_left))
            rows_left -= chunks[-1].row_count

    def _admit_above_lower_classes(self) -> None:
        """Admit the first waiting request if it is of a higher class than one that runs.

        Lower classes give way for its slot or blocks, and only if that is enough."""
        if not self.waiting or not self.running:
            return
        sequence = self.waiting[0]
        if sequence.priority >= self.running[-1].priority or _awaits_leader(sequence):
            return
        found = self.kv.find_prefix(sequence)
        if self._is_deferred(sequence, found):
            return
        reserve = self._reserve(sequence)
        if not self._has_room(sequence, found, reserve):
            freed = self._freed_by_lower_classes(sequence, found.blocks)
            cost = self.kv.admission_cost(sequence, found.blocks)
            if cost + reserve > self.kv.pool.free_count + freed:
                return
            while not self._has_room(sequence, found, reserve):
                assert self.running[-1].priority > sequence.priority
                self._preempt(self.running[-1])
        self._admit(sequence, found)

    def _freed_by_lower_classes(self, sequence: Sequence, hits: list[int]) -> int:
        """Blocks, not counting `hits`, that only running ones of lower classes hold."""
        kept = set(hits)
        return self.kv.pool.exclusive_count(
            [block for block in other.blocks if block not in kept]
            for other in self.running
            if other.priority > sequence.priority
        )

    def _is_deferred(self, sequence: Sequence, found: Prefix) -> bool:
        """Whether to wait, because a running request is computing the next block of its prefix.

        Only for one of its own class or a higher one, which a lower class cannot hold up."""
        if self._host_tokens(sequence, found):
            return False
        owner = self.kv.promised_by(sequence, found.tokens // self.kv.block_size_tokens)
        return owner is not None and owner.priority <= sequence.priority

    def _has_room(self, sequence: Sequence, found: Prefix, reserve: int) -> bool:
        """Whether a slot is free, and blocks for all its tokens beside `reserve` of them."""
        if len(self.running) == self.running_max:
            return False
        cost = self.kv.admission_cost(sequence, found.blocks)
        return cost + reserve <= self.kv.pool.free_count

    def _reserve(self, sequence: Sequence) -> int:
        """Blocks to leave free for its own growth and that of its class and those above.

        None if no such request runs: it is then the first of the order, which never gives way."""
        others = [other for other in self.running if other.priority <= sequence.priority]
        return self._growth.blocks([*others, sequence]) if others else 0

    def _admit(self, sequence: Sequence, found: Prefix) -> None:
        self.waiting.remove(sequence)
        host_tokens = self._host_tokens(sequence, found)
        self.kv.admit(sequence, found, host_tokens)
        if self.host is not None and host_tokens:
            self.host.restore(sequence, found.tokens // self.kv.block_size_tokens)
        elif self.host is not None:
            self.host.forget(sequence)
        self._admitted.add(sequence)
        sequence.slot = self._free_slots.pop()
        sequence.state = SequenceState.RUNNING
        insort(self.running, sequence, key=order_of)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemption_count += 1
        if self.host is not None and sequence not in self._admitted:
            self.host.save(sequence, self.kv.block_size_tokens)
        self._stop_running(sequence, is_kept=True)
        sequence.count_preemption()
        self.add(sequence)

    def _host_tokens(self, sequence: Sequence, found: Prefix) -> int:
        """Tokens that host memory has of a sequence, if they are more than was found."""
        tokens = 0 if self.host is None else self.host.token_count(sequence)
        return tokens if tokens > found.tokens else 0

    def _stop_running(self, sequence: Sequence, *, is_kept: bool = False) -> None:
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
        self.kv.release(sequence, is_kept=is_kept)


def _awaits_leader(sequence: Sequence) -> bool:
    """Whether a choice waits for its leader, which comes before it, to compute their prompt."""
    leader = sequence.leader
    return (
        leader is not None
        and not sequence.completion_count
        and leader.state is not SequenceState.FINISHED
        and leader.computed < sequence.prompt_count - 1
    )
