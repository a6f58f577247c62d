"""The simulator's clock, engines and histogram in C++ against those in Python, to the last bit."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.base.errors import Conflict, ContextLengthExceeded, RateLimited
from headrace.sim.fleet.aggregate_engine import AggregateEngine
from headrace.sim.fleet.attempt import Attempt
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.machinery import Machinery, compiled, plain
from headrace.sim.fleet.randomness import stream
from headrace.sim.fleet.request import Segment
from headrace.sim.fleet.scenario import Scenario, load, names
from headrace.sim.fleet.simulation import Simulation
from headrace.sim.fleet.traffic import begin_traffic

MakeAttempt = Callable[..., Attempt]
Log = list[tuple[Any, ...]]


def short(name: str) -> Scenario:
    """A shipped scenario, small enough for the slow machinery, with all of its faults."""
    scenario = load(name)
    fleet = msgspec.structs.replace(scenario.fleet, deployments=min(20, scenario.fleet.deployments))
    seconds = scenario.duration_s if scenario.faults else min(20.0, scenario.duration_s)
    traffic = [
        msgspec.structs.replace(each, rate_per_s=min(100.0, each.rate_per_s))
        for each in scenario.traffic
    ]
    return msgspec.structs.replace(scenario, fleet=fleet, duration_s=seconds, traffic=traffic)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("policy", ["headrace", "least-work-precise"])
def test_a_scenario_gives_the_same_report_on_both(name: str, policy: str) -> None:
    scenario = msgspec.structs.replace(short(name), policy=policy)
    reports = [
        msgspec.json.encode(Simulation(scenario, 11, name=name, machinery=machinery).run())
        for machinery in (plain, compiled)
    ]
    assert reports[0] == reports[1]


def test_the_exact_engine_runs_on_both_clocks_alike() -> None:
    scenario = short("faults")
    fleet = msgspec.structs.replace(scenario.fleet, engine="exact")
    scenario = msgspec.structs.replace(scenario, fleet=fleet, duration_s=4.0)
    reports = [
        msgspec.json.encode(Simulation(scenario, 3, machinery=machinery).run())
        for machinery in (plain, compiled)
    ]
    assert reports[0] == reports[1]


class Engine:
    """One engine under a load of everything that can be done to it, and what came of it."""

    def __init__(self, machinery: Machinery, device: DeviceModel, *, prefix_cache: bool) -> None:
        self.loop = machinery.new_loop(0.0005)
        self.gaps = machinery.new_gaps()
        self.log: Log = []
        self.engine = machinery.aggregate_engines(
            self.loop, device, self, self.gaps, prefix_cache=prefix_cache
        )()

    def first_token(self, attempt: Attempt) -> None:
        self._note("first", attempt.request.id, attempt.cached_tokens, attempt.produced_tokens)

    def finished(self, attempt: Attempt) -> None:
        self._note("end", attempt.request.id, attempt.produced_tokens)

    def submit(self, attempt: Attempt) -> None:
        try:
            self.engine.submit(attempt)
        except (Conflict, ContextLengthExceeded, RateLimited) as error:
            self._note("refused", attempt.request.id, type(error), str(error), error.param)

    def state(self) -> tuple[Any, ...]:
        engine: Any = self.engine
        is_plain = isinstance(engine, AggregateEngine)
        free_tokens = engine.cache.free_tokens if is_plain else engine.free_tokens
        return (engine.load(), engine.preemption_count, free_tokens, self.gaps.mean)

    def _note(self, *what: object) -> None:
        self.log.append((self.loop.now_s, *what, *self.state()))


def load_at_random(driven: Engine, attempt_of: MakeAttempt, seed: int) -> None:
    """New and continued prompts, shared beginnings, aborts, slow spells, bursts at one moment."""
    rng, loop = stream(seed, "load"), driven.loop
    now_s = 0.0
    prompts: list[list[Segment]] = []
    for number in range(250):
        now_s += rng.choice((0.0, rng.expovariate(12.0), rng.expovariate(2.0)))
        segments = [Segment(rng.randrange(4), 700), Segment(10_000 + number, rng.randrange(1, 900))]
        output = rng.randrange(1, 300)
        if prompts and rng.random() < 0.3:
            segments = [*rng.choice(prompts), Segment(20_000 + number, rng.randrange(1, 60))]
        if rng.random() < 0.02:
            segments.append(Segment(30_000 + number, 40_000))  # longer than any context
        attempt = attempt_of(number, segments, output, now_s)
        prompts.append([*segments, Segment(0, output)])
        loop.at(now_s, driven.submit, attempt)
        if rng.random() < 0.05:
            loop.at(now_s, driven.submit, attempt)
        if rng.random() < 0.15:
            loop.at(now_s + rng.expovariate(0.7), driven.engine.abort, attempt)
        if rng.random() < 0.05:
            loop.at(now_s + rng.random(), driven.engine.slow_down, rng.choice((1.0, 3.0)))


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("kv_tokens", [3000, 16_384, 400_000])
@pytest.mark.parametrize("seed", range(8))
def test_an_engine_tells_the_same_on_both(
    seed: int, kv_tokens: int, prefix_cache: bool, device: DeviceModel, attempt_of: MakeAttempt
) -> None:
    points = ((1, 0.01), (16, 0.012), (64, 0.02), (256, 0.06)) if seed % 2 else ()
    used = msgspec.structs.replace(
        device, kv_tokens=kv_tokens, matrix_points=points, waiting_max=40, max_model_len=30_000
    )
    logs = []
    for machinery in (plain, compiled):
        driven = Engine(machinery, used, prefix_cache=prefix_cache)
        load_at_random(driven, attempt_of, seed)
        driven.loop.run()
        assert driven.engine.load() == (0, 0)
        assert driven.state()[2] == kv_tokens
        logs.append((driven.log, driven.state(), driven.loop.events_total))
    assert len(logs[0][0]) > 150
    assert logs[0] == logs[1]


def test_short_pools_make_both_preempt(device: DeviceModel, attempt_of: MakeAttempt) -> None:
    """The comparison above would be worth little if nothing was ever preempted in it."""
    driven = Engine(compiled, msgspec.structs.replace(device, kv_tokens=3000), prefix_cache=True)
    load_at_random(driven, attempt_of, 0)
    driven.loop.run()
    assert driven.state()[1] > 0


def test_a_halted_engine_is_silent_and_lets_its_clock_go_on(
    device: DeviceModel, attempt_of: MakeAttempt
) -> None:
    driven = Engine(compiled, device, prefix_cache=True)
    driven.submit(attempt_of(1, [(5, 100)], 1000))
    driven.loop.at(1.0, lambda _: driven.engine.halt(), None)
    driven.loop.run()
    assert [entry[1] for entry in driven.log] == ["first"]


def test_what_a_listener_raises_comes_out_of_the_run(
    device: DeviceModel, attempt_of: MakeAttempt
) -> None:
    class Broken(Engine):
        def finished(self, attempt: Attempt) -> None:
            raise RuntimeError("not told")

    driven = Broken(compiled, device, prefix_cache=True)
    driven.submit(attempt_of(1, [(5, 100)], 10))
    with pytest.raises(RuntimeError, match="not told"):
        driven.loop.run()


@pytest.mark.parametrize("machinery", [plain, compiled], ids=["plain", "compiled"])
def test_a_simulation_that_nobody_has_any_more_is_collected(machinery: Machinery) -> None:
    """Clock, engines, requests and gateway refer to each other, in C++ and Python."""
    simulation = Simulation(short("faults"), 1, machinery=machinery)
    arrive = simulation.gateway.arrive
    begin_traffic(simulation.scenario, 1, simulation.loop, arrive, machinery.new_shapes)
    simulation.loop.run(until_s=3.0)
    assert simulation.loop.pending_count
    assert any(replica.engine.load() != (0, 0) for replica in simulation.replicas.all)
    gone = weakref.ref(simulation)
    del simulation
    gc.collect()
    assert gone() is None
