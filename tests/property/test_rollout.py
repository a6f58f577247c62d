"""Rollouts end where they should, however looks come, and lose no request on the way.

A small world beside the real `decide`, the real picker and the real rule of shares: processes
start, load, serve and die; a gateway follows the store late; requests run where they were sent.
"""

import random
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.adapters.protocol import Readiness, ReadinessState
from headrace.base.errors import Unavailable
from headrace.control.actions import (
    ChangeDeployment,
    ChangeReplica,
    CreateReplica,
    DeleteReplica,
    LaunchReplica,
    StopReplica,
)
from headrace.control.decide import ControlTimes, decide
from headrace.control.rollout_health import GenerationHealth
from headrace.control.world import ModelFileState, ReplicaObservation, World
from headrace.gateway.snapshot import endpoints_of
from headrace.router.endpoint_set import EndpointSet
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.rollout import CanaryStep, RolloutPolicy, RolloutStrategy
from headrace.spec.signals import first_token_bounds_s

times = ControlTimes()
tick_s = 0.25
settle_ticks_max = 4000
pepper = bytes(range(32))


@dataclass
class Running:
    """A request on a replica's process."""

    lease: Lease
    replica_id: str
    launch: int
    ends_s: float


class Fleet:
    """A store, a machine, a gateway with requests, as obvious as possible."""

    def __init__(self, policy: RolloutPolicy, replicas: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.deployment = Deployment(
            id="dep",
            name="d",
            parent_id="mod",
            create_time=0,
            model_version_id="ver",
            replicas=replicas,
            rollout=policy,
        )
        self.replicas: dict[str, Replica] = {}
        self.loaded_s: dict[str, float] = {}  # when the process of a replica will be ready
        self.launches: dict[str, int] = {}
        self.created = 0
        self.broken_generations: set[int] = set()  # whose processes end while they load
        self.harmful_generations: set[int] = set()  # whose attempts fail
        self.late_generations: set[int] = set()  # whose first tokens come after seconds
        self.endpoints = EndpointSet()
        self.picker = Picker(self.endpoints, self.rng)
        self.running: list[Running] = []
        self.counts: dict[int, list[int]] = {}  # generation: attempts, failures
        self.failed_requests = 0
        self.answered_requests = 0

    def look(self) -> bool:
        """One pass of the reconciler; whether nothing was due."""
        seen = {name: self.observation(name) for name in self.loaded_s}
        world = World(
            now_s=self.now_s,
            deployment=self.deployment,
            replicas=tuple(self.replicas.values()),
            observations=seen,
            model_file=ModelFileState(path="/m"),
            former_model_file=ModelFileState(path="/m"),
            health=self.health(),
        )
        actions = decide(world, times)
        for action in actions:
            match action:
                case ChangeDeployment(deployment):
                    self.deployment = deployment
                case CreateReplica(deployment, name):
                    self.create(deployment, name)
                case ChangeReplica(replica):
                    self.replicas[replica.id] = replica
                case LaunchReplica(_, template, replica, _):
                    assert template.generation == replica.generation
                    self.launch(replica)
                case StopReplica(replica):
                    self.loaded_s.pop(replica.id, None)
                case DeleteReplica(replica):
                    assert replica.id not in self.loaded_s, "a forgotten replica still runs"
                    del self.replicas[replica.id]
        return not actions

    def observation(self, name: str) -> ReplicaObservation:
        is_ready = self.now_s >= self.loaded_s[name]
        state = ReadinessState.READY if is_ready else ReadinessState.LOADING
        return ReplicaObservation(
            alive=True,
            readiness=Readiness(state),
            token_came=is_ready,
            running_requests=sum(run.replica_id == name for run in self.running),
        )

    def health(self) -> dict[int, GenerationHealth]:
        return {
            generation: GenerationHealth(
                attempts, failures, self.first_tokens(generation, attempts - failures)
            )
            for generation, (attempts, failures) in self.counts.items()
        }

    def first_tokens(self, generation: int, count: int) -> tuple[int, ...]:
        came_s = first_token_bounds_s[-3 if generation in self.late_generations else 1]
        return (*(count if bound_s == came_s else 0 for bound_s in first_token_bounds_s), 0)

    def create(self, deployment: Deployment, name: str) -> None:
        self.created += 1
        replica_id = f"r{self.created}"
        self.replicas[replica_id] = Replica(
            id=replica_id,
            name=name,
            parent_id="dep",
            create_time=self.now_s,
            generation=deployment.generation,
        )

    def launch(self, replica: Replica) -> None:
        count = self.launches[replica.id] = self.launches.get(replica.id, 0) + 1
        self.replicas[replica.id] = msgspec.structs.replace(
            replica,
            state=ReplicaState.LOADING,
            state_time=self.now_s,
            address=f"http://{replica.id}",
            engine_key=str(count),
            attempts=replica.attempts + 1,
        )
        if replica.generation not in self.broken_generations:
            self.loaded_s[replica.id] = self.now_s + self.rng.uniform(0.5, 3.0)

    def follow(self) -> None:
        """The gateway takes the store's state."""
        specs = endpoints_of(tuple(self.replicas.values()), {"dep": self.deployment}, pepper)
        self.endpoints.update(specs)

    def serve(self, arrivals: int) -> None:
        """Requests come, run where they were sent, are retried like the gateway does, and end."""
        still: list[Running] = []
        for run in self.running:
            if self.launches.get(run.replica_id) != run.launch or not self.is_up(run.replica_id):
                self.failed_requests += 1  # its process was stopped under it
                run.lease.release()
            elif self.now_s >= run.ends_s:
                self.answered_requests += 1
                run.lease.release()
            else:
                still.append(run)
        self.running = still
        for _ in range(arrivals):
            self.arrive()

    def arrive(self) -> None:
        excluded: set[str] = set()
        for _ in range(3):
            try:
                lease = self.picker.lease([("ver", 1)], Work(10, 10), self.now_s, excluded)
            except Unavailable:
                break
            spec = lease.endpoint.spec
            counts = self.counts.setdefault(spec.generation, [0, 0])
            counts[0] += 1
            if self.is_up(spec.id) and spec.generation not in self.harmful_generations:
                launch = self.launches[spec.id]
                ends_s = self.now_s + self.rng.uniform(0.0, 4.0)
                self.running.append(Running(lease, spec.id, launch, ends_s))
                return
            counts[1] += 1
            excluded.add(spec.id)
            if not self.is_up(spec.id):
                lease.fail(self.now_s)
            lease.release()
        self.failed_requests += 1

    def is_up(self, replica_id: str) -> bool:
        return self.loaded_s.get(replica_id, float("inf")) <= self.now_s

    def tick(self, arrivals: int = 0) -> bool:
        self.now_s += tick_s
        quiet = self.look()
        self.serve(arrivals)  # before the gateway learns of what was just done
        self.follow()
        return quiet

    def settle(self, arrivals: int = 0) -> None:
        for _ in range(settle_ticks_max):
            quiet = self.tick(arrivals)
            if (
                quiet
                and self.deployment.progress is None
                and len(self.replicas) == self.deployment.replicas
                and all(r.state is ReplicaState.ACTIVE for r in self.replicas.values())
            ):
                return
        raise AssertionError(f"not settled: {self.deployment.progress} {self.replicas}")

    def change(self) -> int:
        template = msgspec.structs.replace(
            self.deployment.template, engine_arguments=(f"--change={self.rng.random()}",)
        )
        self.deployment = self.deployment.with_template(template)
        return self.deployment.generation


policies = {
    "rolling": RolloutPolicy(),
    "rolling by two": RolloutPolicy(surge=2),
    "blue-green": RolloutPolicy(strategy=RolloutStrategy.BLUE_GREEN, bake_s=5.0),
    "canary": RolloutPolicy(
        strategy=RolloutStrategy.CANARY, steps=(CanaryStep(10, 3.0), CanaryStep(50, 3.0))
    ),
}


@pytest.mark.parametrize("name", policies)
def test_twenty_five_rollouts_under_load_lose_no_request(name: str) -> None:
    fleet = Fleet(policies[name], replicas=3, seed=7)
    fleet.settle()
    for _ in range(25):
        generation = fleet.change()
        fleet.settle(arrivals=3)
        assert {r.generation for r in fleet.replicas.values()} == {generation}
    assert fleet.failed_requests == 0
    assert fleet.answered_requests > 1000
    verdict = fleet.deployment.verdict
    assert verdict is not None
    assert verdict.succeeded


@pytest.mark.parametrize("name", policies)
def test_a_generation_that_does_not_start_is_rolled_back_without_a_lost_request(name: str) -> None:
    fleet = Fleet(policies[name], replicas=3, seed=3)
    fleet.settle()
    good = fleet.deployment.generation
    fleet.broken_generations.add(fleet.change())
    fleet.settle(arrivals=2)
    assert fleet.deployment.generation == good
    assert {r.generation for r in fleet.replicas.values()} == {good}
    assert fleet.failed_requests == 0
    verdict = fleet.deployment.verdict
    assert verdict is not None
    assert "did not start" in verdict.reason
    later = fleet.change()
    assert later > good + 1, "the number of the bad generation is not given out again"
    fleet.settle(arrivals=2)
    assert fleet.deployment.generation == later


@pytest.mark.parametrize("name", ["canary", "rolling"])
def test_a_generation_that_does_harm_is_rolled_back(name: str) -> None:
    fleet = Fleet(policies[name], replicas=4, seed=3)
    fleet.settle()
    good = fleet.deployment.generation
    fleet.harmful_generations.add(fleet.change())
    fleet.settle(arrivals=4)
    assert fleet.deployment.generation == good
    verdict = fleet.deployment.verdict
    assert verdict is not None
    assert "attempts failed" in verdict.reason
    assert fleet.failed_requests <= 0.02 * fleet.answered_requests


@pytest.mark.parametrize("name", ["canary", "rolling"])
def test_a_generation_whose_first_tokens_come_late_is_rolled_back(name: str) -> None:
    fleet = Fleet(policies[name], replicas=4, seed=3)
    fleet.settle()
    good = fleet.deployment.generation
    for _ in range(40):
        fleet.tick(arrivals=4)  # what is compared with
    fleet.late_generations.add(fleet.change())
    fleet.settle(arrivals=4)
    assert fleet.deployment.generation == good
    verdict = fleet.deployment.verdict
    assert verdict is not None
    assert "90th percentile of first tokens" in verdict.reason
    assert fleet.failed_requests == 0


def test_a_paused_rollout_stays_where_it_is_and_goes_on_when_told() -> None:
    fleet = Fleet(policies["canary"], replicas=4, seed=5)
    fleet.settle()
    fleet.change()
    while fleet.deployment.progress is None or fleet.deployment.progress.step < 1:
        fleet.tick(1)

    def pause(*, is_paused: bool) -> None:
        assert fleet.deployment.progress is not None
        progress = msgspec.structs.replace(fleet.deployment.progress, is_paused=is_paused)
        fleet.deployment = msgspec.structs.replace(fleet.deployment, progress=progress)

    pause(is_paused=True)
    for _ in range(100):
        fleet.tick(1)
    before = sorted((r.generation, r.state) for r in fleet.replicas.values())
    for _ in range(200):
        fleet.tick(1)
    assert sorted((r.generation, r.state) for r in fleet.replicas.values()) == before
    assert len({generation for generation, _ in before}) == 2
    pause(is_paused=False)
    fleet.settle(arrivals=1)
    assert fleet.failed_requests == 0


events = st.one_of(
    st.tuples(st.just("tick"), st.integers(0, 3)),
    st.tuples(st.just("follow"), st.just(0)),
    st.tuples(st.just("die"), st.integers(0, 9)),
    st.tuples(st.just("scale"), st.integers(0, 4)),
    st.tuples(st.just("change"), st.just(0)),
    st.tuples(st.just("back"), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 60)),
)


@settings(max_examples=60, deadline=None, print_blob=True)
@given(st.sampled_from(sorted(policies)), st.lists(events, max_size=40))
def test_any_history_ends_with_the_wanted_generation(
    name: str, history: list[tuple[str, int]]
) -> None:
    fleet = Fleet(policies[name], replicas=2, seed=11)
    for event, number in history:
        match event:
            case "tick":
                for _ in range(number):
                    fleet.tick()
            case "follow":
                fleet.follow()
            case "wait":
                fleet.now_s += number
            case "die" if number < len(fleet.loaded_s):
                del fleet.loaded_s[list(fleet.loaded_s)[number]]
            case "scale":
                fleet.deployment = msgspec.structs.replace(fleet.deployment, replicas=number)
            case "change":
                fleet.change()
            case "back" if fleet.deployment.former is not None:
                fleet.deployment = fleet.deployment.rolled_back()
    fleet.settle()
    generations = {r.generation for r in fleet.replicas.values()}
    assert generations <= {fleet.deployment.generation}
