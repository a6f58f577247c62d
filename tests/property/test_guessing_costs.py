"""Guessing costs no more than a known share of all time, whatever guesses cost and are worth.

An adversary chooses what each step with guesses takes, how many come true, and how many sequences
decode in it; or none is found, and looking for them takes long. A step without guesses takes
`base + row * sequences`; the machine may become faster or slower a few times.
At every moment of every run:

    total time <= (1 + allowed_share) * time without guesses + a constant number of steps

Time is simulated: nothing here depends on the machine. A failure prints the blob that repeats it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.engine.core import EngineCore
from headrace.engine.guess_account import allowed_share, slack_steps
from headrace.engine.guess_gain import GuessGain, refresh_steps, trial_steps
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.runner import StepBatch
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine.sequence import Sequence
from headrace.sim.clock import ManualClock
from headrace.sim.runner import FakeModel, FakeRunner

worst_step = 10.0  # of a step with guesses, in steps without: 8 guesses, and making them
sizes_max = 3  # powers of two that the numbers of sequences fall in

costs = st.floats(0.0, worst_step)  # of a step with guesses, in steps without
outcomes = st.tuples(costs, st.floats(0.0, 1.0))  # and the share of 8 guesses that come true


@dataclass
class Machine:
    """What steps take, and what they would have taken without guesses."""

    base_s: float
    row_s: float
    speed: float = 1.0
    total_s: float = 0.0
    without_s: float = 0.0
    longest_s: float = 0.0  # step without guesses
    guessed_tokens: int = 0

    def step(self, gain: GuessGain, sequences: int, cost: float, share: float, found: bool) -> None:
        plain_s = (self.base_s + self.row_s * sequences) * self.speed
        self.longest_s = max(self.longest_s, plain_s)
        is_allowed = gain.allows(sequences)
        has_guesses = is_allowed and found
        accepted = int(8 * sequences * share) if has_guesses else 0
        looking_s = 0.0 if has_guesses or not is_allowed else plain_s * cost
        seconds = plain_s * cost if has_guesses else plain_s + looking_s
        tokens = sequences + accepted
        gain.record(sequences, tokens, seconds, has_guesses=has_guesses, looking_s=looking_s)
        self.total_s += seconds
        self.without_s += plain_s * tokens / sequences
        self.guessed_tokens += accepted

    def check(self, constant_steps: float) -> None:
        limit_s = (1 + allowed_share) * self.without_s + constant_steps * self.longest_s
        assert self.total_s <= limit_s * (1 + 1e-9), (self.total_s, self.without_s)


def endless(steps: list[tuple[float, float]], *, found: bool) -> dict[str, Any]:
    """Thousands of the same steps, of one sequence."""
    repeats = 4000 // len(steps)
    fixed = {"base_s": 0.02, "row_share": 0.01, "sizes": [1], "plain_first": False}
    return {**fixed, "steps": steps, "found": found, "repeats": repeats}


first_trials = sizes_max * trial_steps * worst_step  # before anything is known to compare with
constant = slack_steps + worst_step + first_trials


@settings(max_examples=40, deadline=None, print_blob=True)
@given(
    base_s=st.floats(0.001, 0.1),
    row_share=st.floats(0.0, 2.0),
    steps=st.lists(outcomes, min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    plain_first=st.booleans(),
    found=st.booleans(),
    repeats=st.integers(1, 20),
)
@example(**endless([(10.0, 0.0)], found=True))
@example(**endless([(0.05, 0.0)], found=False))
@example(**endless([(8.9, 1.0)] * 9 + [(9.9, 0.0)], found=True))
@example(**{**endless([(3.0, 0.3)], found=True), "sizes": [4, 7]})
def test_no_guesses_cost_more_than_the_allowed_share(
    base_s: float,
    row_share: float,
    steps: list[tuple[float, float]],
    sizes: list[int],
    plain_first: bool,
    found: bool,
    repeats: int,
) -> None:
    gain = GuessGain(plain_first=plain_first)
    machine = Machine(base_s, base_s * row_share)
    for _ in range(repeats):
        for sequences in sizes:
            for cost, share in steps:
                machine.step(gain, sequences, cost, share, found)
                machine.check(constant)


@settings(max_examples=40, deadline=None, print_blob=True)
@given(
    speeds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4),
    steps=st.lists(outcomes, min_size=1, max_size=12),
    repeats=st.integers(1, 40),
)
@example(speeds=[10.0, 0.1], steps=[(0.5, 0.0)] * 70 + [(5.0, 0.0)], repeats=30)
def test_a_machine_that_becomes_faster_or_slower_costs_a_constant_each_time(
    speeds: list[float], steps: list[tuple[float, float]], repeats: int
) -> None:
    """What was credited at the old speed is corrected once the new one is measured."""
    gain = GuessGain()
    machine = Machine(0.02, 0.001)
    for change, speed in enumerate(speeds):
        machine.speed = speed
        for _ in range(repeats):
            for cost, share in steps:
                machine.step(gain, 1, cost, share, found=True)
                machine.check(constant + change * refresh_steps * worst_step)


def test_guesses_that_pay_are_not_held_back() -> None:
    gain = GuessGain(plain_first=True)
    machine = Machine(0.02, 0.001)
    for _ in range(1000):
        machine.step(gain, 1, cost=1.2, share=0.25, found=True)
    assert machine.total_s < 0.45 * machine.without_s


class Adversary:
    """Guesses that come true while the script says so."""

    def __init__(self, script: list[bool], model: FakeModel) -> None:
        self._script = script
        self._model = model
        self._asked = 0

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        self._asked += 1
        if self._script[self._asked % len(self._script)]:
            sampling = SamplingParams(temperature=0, max_tokens=count)
            return self._model.generate(sequence.tokens, sampling, 10_000)[0]
        return [0] * count


def engine_time(
    draft_tokens_max: int, outputs: list[int], row_s: Callable[[int], float], script: list[bool]
) -> tuple[float, float]:
    """What an engine takes for these outputs, one after the other; and for a step of one row."""
    clock, model = ManualClock(), FakeModel(50)

    def pass_time(batch: StepBatch) -> None:
        clock.advance(0.02 + sum(row_s(row) for row in range(len(batch.token_ids))))

    runner = FakeRunner(model, max_model_len=256, during_step=pass_time)
    config = SchedulerConfig(None, draft_tokens_max=draft_tokens_max)
    core = EngineCore(runner, config, clock, Adversary(script, model))
    for index, count in enumerate(outputs):
        sampling = SamplingParams(temperature=0, max_tokens=count)
        core.submit(EngineRequest(f"r{index}", (index % 50, 1, 2), sampling))
        while core.has_work():
            core.step()
    return clock.monotonic_s(), 0.02 + row_s(0)


@settings(max_examples=8, deadline=None, print_blob=True)
@given(
    outputs=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    rows_s=st.lists(st.floats(0.0, 0.04), min_size=1, max_size=9),
    script=st.lists(st.booleans(), min_size=1, max_size=9),
)
def test_an_engine_with_guesses_takes_no_longer_than_one_without(
    outputs: list[int], rows_s: list[float], script: list[bool]
) -> None:
    def row_s(row: int) -> float:
        return rows_s[row % len(rows_s)]

    with_s, _ = engine_time(8, outputs, row_s, script)
    without_s, step_s = engine_time(0, outputs, row_s, script)
    worst_s = 0.02 + sum(row_s(row) for row in range(9))
    assert with_s <= (1 + allowed_share) * without_s + slack_steps * step_s + 9 * worst_s + 1e-9
