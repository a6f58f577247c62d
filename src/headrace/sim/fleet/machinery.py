"""The inner works of a simulation, twice: in C++ to be quick, in Python to be read.

`compiled` is what simulations run on. `plain` is written independently of it and does the same to
the last bit, which `test_machinery.py` demands of every scenario: a rule that changes is changed in
Python first (`event_loop`, `aggregate_engine`, `prefix_cache`, `device`, `histogram`,
`lengths`, `shapes`), then in
`csrc/sim/`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from headrace.engine import growth
from headrace.engine.scheduler import deferred_max
from headrace.kernels._native import SimEngine as CompiledEngine
from headrace.kernels._native import SimEngines, SimHistogram, SimLoop, SimShapes
from headrace.sim.fleet.aggregate_engine import AggregateEngine
from headrace.sim.fleet.attempt import Listener, SimEngine
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.event_loop import EventLoop, Loop, wall_start_s
from headrace.sim.fleet.histogram import Histogram, WeightedTimes
from headrace.sim.fleet.lengths import Length
from headrace.sim.fleet.shapes import DrawnShapes, Shapes


class MakeEngines(Protocol):
    """Prepares the engines of a fleet."""

    def __call__(
        self,
        loop: Loop,
        device: DeviceModel,
        listener: Listener,
        gaps: WeightedTimes,
        *,
        prefix_cache: bool,
    ) -> Callable[[], SimEngine]:
        """What makes one of them, each time that it is called."""
        ...


@dataclass(frozen=True, slots=True)
class Machinery:
    """Which clock, histogram, draws and aggregate engine a simulation has."""

    new_loop: Callable[[float], Loop]  # of the delay that most calls have
    new_gaps: Callable[[], WeightedTimes]
    new_shapes: Callable[[random.Random, Length, Length], Shapes]  # of prompts, of answers
    aggregate_engines: MakeEngines


class Scheduling(NamedTuple):
    """The real scheduler's own numbers."""

    deferred_max: int = deferred_max
    growth_tokens_max: int = growth.growth_tokens_max
    share_start: float = growth.share_start
    share_min: float = growth.share_min
    share_max: float = growth.share_max
    share_raise: float = growth.share_raise
    share_decay: float = growth.share_decay


def _compiled_engines(
    loop: Loop,
    device: DeviceModel,
    listener: Listener,
    gaps: WeightedTimes,
    *,
    prefix_cache: bool,
) -> Callable[[], SimEngine]:
    engines = SimEngines(loop, device, listener, gaps, Scheduling(), prefix_cache)
    return partial(CompiledEngine, engines)


def _plain_engines(
    loop: Loop,
    device: DeviceModel,
    listener: Listener,
    gaps: WeightedTimes,
    *,
    prefix_cache: bool,
) -> Callable[[], SimEngine]:
    return partial(AggregateEngine, loop, device, listener, gaps, prefix_cache=prefix_cache)


compiled = Machinery(
    lambda message_delay_s: SimLoop(message_delay_s, wall_start_s),
    SimHistogram,
    lambda rng, fresh, output: SimShapes(rng.getstate()[1], fresh, output),
    _compiled_engines,
)
plain = Machinery(EventLoop, Histogram, DrawnShapes, _plain_engines)
