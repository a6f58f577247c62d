"""One run of a scenario: builds the parts, lets the clock go, checks the invariants, reports."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from headrace.base.money import nanousd_per_usd
from headrace.router.endpoint import Endpoint
from headrace.router.lease import Work
from headrace.router.policy import RoutingPolicy
from headrace.sim.fleet.attempt import SimEngine
from headrace.sim.fleet.books import Books
from headrace.sim.fleet.exact_engine import ExactEngine
from headrace.sim.fleet.faults import FaultInjector, end_s
from headrace.sim.fleet.gateway import SimGateway
from headrace.sim.fleet.invariants import InvariantBroken, Invariants
from headrace.sim.fleet.machinery import Machinery, compiled
from headrace.sim.fleet.policies import PolicyContext, headrace, policies
from headrace.sim.fleet.randomness import stream
from headrace.sim.fleet.replicas import Replicas
from headrace.sim.fleet.report import (
    Recorder,
    Report,
    digits,
    histogram_latency,
    imbalance,
    latency,
)
from headrace.sim.fleet.request import Outcome
from headrace.sim.fleet.scaler import Scaler
from headrace.sim.fleet.scaling_rules import RuleContext, make_rule
from headrace.sim.fleet.scenario import Scenario
from headrace.sim.fleet.traffic import arrivals_of, begin_traffic
from headrace.sim.fleet.wire import Wire

quiet_check_interval_events = 10_000
quiet_check_events_per_replica = 50  # between two checks, each of which looks at all of them
control_plane_margin_s = 1.0  # beyond noticing and starting, for the desired state to be reached


class Simulation:
    """A scenario with a seed; `run` once."""

    def __init__(
        self, scenario: Scenario, seed: int, *, name: str = "", machinery: Machinery = compiled
    ) -> None:
        self.scenario = scenario
        self.seed = seed
        self.name = name
        self._machinery = machinery
        self.loop = machinery.new_loop(scenario.network.latency_s)
        self.invariants = Invariants()
        fleet = scenario.fleet
        self.recorder = Recorder(scenario.objective, machinery.new_gaps())
        rng = stream(seed, "gateway")
        self.wire = Wire(self.loop, scenario.network, rng)
        self.replicas = Replicas(
            self.loop,
            self.invariants,
            self._engine_maker(machinery),
            detect_s=fleet.detect_s,
            start_s=fleet.start_s,
            kv_tokens=scenario.device.kv_tokens,
        )
        self.books = self._new_books()
        self.gateway = SimGateway(
            self.loop,
            self.replicas,
            self.wire,
            policy=self._new_policy(),
            rng=rng,
            invariants=self.invariants,
            books=self.books,
            record=self.recorder.take,
        )
        self.scaler = self._new_scaler()
        for index in range(fleet.deployments * fleet.replicas):
            self.replicas.add(index // fleet.replicas, index % fleet.zones)
        self.replicas.publish()

    def run(self, *, check_interval_events: int | None = None) -> Report:
        """Let all traffic come and end; InvariantBroken if something happened that must not.

        Checks of the whole fleet come every `check_interval_events`; None: so seldom that they
        cost little."""
        begin_traffic(
            self.scenario, self.seed, self.loop, self.gateway.arrive, self._machinery.new_shapes
        )
        if self.scaler is not None:
            self._start_scaler(self.scaler)
        injector = FaultInjector(
            self.loop,
            self.replicas,
            self.gateway,
            self.wire,
            books=self.books,
            rng=stream(self.seed, "faults"),
        )
        for fault in self.scenario.faults:
            injector.plan(fault)
        self._expect_desired_state()
        try:
            with uncollected():
                self._run_checked(check_interval_events)
        except InvariantBroken as broken:
            name = self.name or "SCENARIO"
            broken.add_note(f"to see it again: headrace sim run {name} --seed {self.seed}")
            raise
        return self._report()

    def _expect_desired_state(self) -> None:
        """Look, once the faults are over and the control plane had its time, whether all serve."""
        if not self.scenario.faults:
            return
        fleet = self.scenario.fleet
        over_s = max(end_s(fault) for fault in self.scenario.faults)
        reached_s = over_s + fleet.detect_s + fleet.start_s + control_plane_margin_s
        self.loop.at(reached_s, lambda _: self.invariants.reached(self.replicas.missing()), None)

    def _run_checked(self, check_interval_events: int | None) -> None:
        if check_interval_events is None:
            per_replica_events = quiet_check_events_per_replica * len(self.replicas.all)
            check_interval_events = max(quiet_check_interval_events, per_replica_events)
        while self.loop.pending_count:
            self.loop.run(events_max=check_interval_events)
            self.invariants.check(self.replicas.all_endpoints())
        self.invariants.check_end(self.replicas.all_endpoints())
        if self.books is not None:
            self.books.check_end(self.gateway.admitted_total)

    def _engine_maker(self, machinery: Machinery) -> Callable[[], SimEngine]:
        scenario, fleet = self.scenario, self.scenario.fleet
        make = machinery.aggregate_engines
        if fleet.engine == "exact":
            make = partial(partial, ExactEngine)
        return make(
            self.loop,
            scenario.device,
            self.wire,
            self.recorder.gaps,
            prefix_cache=fleet.prefix_cache,
        )

    def _new_books(self) -> Books | None:
        money = self.scenario.money
        if money is None:
            return None
        tenants = max(traffic.tenants for traffic in self.scenario.traffic)
        return Books(
            self.loop,
            self.invariants,
            stream(self.seed, "books"),
            credits_nanousd=[round(money.credit_usd * nanousd_per_usd)] * tenants,
            duplicate_share=self.scenario.network.duplicate_share,
        )

    def _new_policy(self) -> RoutingPolicy | None:
        if self.scenario.policy == headrace:
            return None

        def known_tokens(endpoint: Endpoint, work: Work) -> int:
            return self.replicas.by_endpoint[endpoint].engine.known_tokens(work.prefix)

        make = policies[self.scenario.policy]
        return make(PolicyContext(stream(self.seed, "policy"), known_tokens))

    def _new_scaler(self) -> Scaler | None:
        scenario = self.scenario
        if scenario.scaling is None:
            return None
        return Scaler(
            self.loop,
            self.replicas,
            self.gateway,
            scenario.scaling,
            start_s=scenario.fleet.start_s,
            until_s=scenario.duration_s,
        )

    def _start_scaler(self, scaler: Scaler) -> None:
        scenario, scaling = self.scenario, self.scenario.scaling
        assert scaling is not None
        context = RuleContext(
            scaling,
            scenario.objective,
            scenario.device,
            scenario.fleet.start_s,
            arrivals_of(scenario, self.seed) if scaling.rule == "clairvoyant" else (),
        )
        scaler.start(scenario.fleet.deployments, lambda: make_rule(context))

    def _worked_tokens(self) -> list[int]:
        """What each replica computed, but for those launched last that had nothing to do yet."""
        tokens = [replica.worked_tokens for replica in self.replicas.all]
        started = self.scenario.fleet.deployments * self.scenario.fleet.replicas
        while len(tokens) > started and not tokens[-1]:
            tokens.pop()
        return tokens

    def _report(self) -> Report:
        recorder, counts = self.recorder, self.recorder.counts
        requests = sum(counts.values())
        span_s = max(self.scenario.duration_s, recorder.last_end_s)
        spent = self.books.spent_nanousd() if self.books is not None else 0
        return Report(
            scenario=self.name or self.scenario.title,
            policy=self.scenario.policy,
            seed=self.seed,
            simulated_s=round(self.loop.now_s, 6),
            events=self.loop.events_total,
            requests=requests,
            finished=counts[Outcome.FINISHED],
            failed=counts[Outcome.FAILED],
            refused=counts[Outcome.REFUSED],
            retries=self.gateway.retries_total,
            waited=self.gateway.waited_total,
            ttft_s=latency(recorder.ttft_s),
            itl_s=histogram_latency(recorder.gaps),
            e2e_s=latency(recorder.e2e_s),
            output_tokens_per_s=round(recorder.output_tokens / span_s, 3),
            goodput_per_s=round(recorder.good_count / span_s, 6),
            objective_share=round(recorder.good_share(), digits),
            cached_share=round(recorder.cached_tokens / max(1, recorder.prompt_tokens), 6),
            imbalance=round(imbalance(self._worked_tokens()), 4),
            spent_usd=spent / nanousd_per_usd,
            device_hours=round(self.replicas.device_s(self.scenario.duration_s) / 3600.0, 6),
            turns_per_hour=round(self.scaler.turns_per_hour(), 3) if self.scaler else 0.0,
        )


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python not look for cycles of garbage: a run makes none, and each look visits the whole
    fleet; at the usual pace that takes a sixth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
