"""However wake-ups come and launches fail, the observed state reaches the desired one.

A small world beside the real `decide`: processes that start, load, serve, die and refuse to start
at random. Wake-ups are dropped, repeated and reordered, because nothing but the world is read.
"""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.adapters.protocol import Readiness, ReadinessState
from headrace.control.actions import (
    ChangeDeployment,
    ChangeReplica,
    CreateReplica,
    DeleteReplica,
    LaunchReplica,
    StopReplica,
)
from headrace.control.decide import ControlTimes, decide
from headrace.control.world import ModelFileState, ReplicaObservation, World
from headrace.spec.deployments import Deployment, Replica, ReplicaState

times = ControlTimes()
looks_to_settle_max = 400


class SmallWorld:
    """A store and a machine, as obvious as possible."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.deployment: Deployment | None = Deployment(
            id="dep", name="d", parent_id="mod", create_time=0, model_version_id="ver"
        )
        self.replicas: dict[str, Replica] = {}
        self.loaded: dict[str, bool] = {}  # processes by replica: whether loading is over
        self.created = 0
        self.silent: set[str] = set()  # replicas whose process lives and answers nothing
        self.refusals = 0  # launches that will come to nothing

    def look(self) -> bool:
        """One pass of the reconciler; whether nothing was due."""
        seen = {
            name: ReplicaObservation(
                alive=True,
                readiness=Readiness(ReadinessState.READY if loaded else ReadinessState.LOADING),
                token_came=loaded,
                running_requests=0,
            )
            if name not in self.silent
            else ReplicaObservation(alive=True)
            for name, loaded in self.loaded.items()
        }
        replicas = tuple(self.replicas.values())
        world = World(self.now_s, self.deployment, replicas, seen, ModelFileState(path="/m"))
        actions = decide(world, times)
        for action in actions:
            match action:
                case ChangeDeployment(deployment):
                    self.deployment = deployment
                case CreateReplica(deployment, name):
                    self.created += 1
                    self.replicas[f"r{self.created}"] = Replica(
                        id=f"r{self.created}",
                        name=name,
                        parent_id="dep",
                        create_time=self.now_s,
                        generation=deployment.generation,
                    )
                case ChangeReplica(replica):
                    self.replicas[replica.id] = replica
                case LaunchReplica(_, _, replica, _):
                    self.launch(replica)
                case StopReplica(replica):
                    self.end(replica.id)
                case DeleteReplica(replica):
                    assert replica.id not in self.loaded, "a forgotten replica still runs"
                    del self.replicas[replica.id]
        names = [replica.name for replica in self.replicas.values()]
        assert len(names) == len(set(names))
        return not actions

    def launch(self, replica: Replica) -> None:
        """Start a process, or write down that none could be started."""
        assert replica.id not in self.loaded, "two processes for one replica"
        assert replica.retry_time is None or replica.retry_time <= self.now_s, "too early"
        attempts = replica.attempts + 1
        refused = self.refusals > 0
        if refused:
            self.refusals -= 1
        else:
            self.loaded[replica.id] = False
        self.replicas[replica.id] = msgspec.structs.replace(
            replica,
            state=ReplicaState.FAILED if refused else ReplicaState.LOADING,
            state_time=self.now_s,
            attempts=attempts,
            retry_time=self.now_s + times.backoff_s(attempts) if refused else None,
        )

    def end(self, name: str) -> None:
        """The end of a process, if there is one."""
        self.loaded.pop(name, None)
        self.silent.discard(name)

    def settle(self) -> None:
        """Time passes and nothing fails any more, until nothing is due."""
        self.refusals = 0
        self.silent.clear()
        for _ in range(looks_to_settle_max):
            self.loaded = dict.fromkeys(self.loaded, True)
            quiet = self.look()
            waiting = any(r.state is not ReplicaState.ACTIVE for r in self.replicas.values())
            if quiet and not waiting:
                return
            self.now_s += 1.0
        raise AssertionError(f"not settled: {self.replicas}")


events = st.one_of(
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("pass"), st.integers(0, 200)),
    st.tuples(st.just("die"), st.integers(0, 5)),
    st.tuples(st.just("load"), st.integers(0, 5)),
    st.tuples(st.just("mute"), st.integers(0, 5)),
    st.tuples(st.just("refuse"), st.integers(1, 8)),
    st.tuples(st.just("scale"), st.integers(0, 4)),
    st.tuples(st.just("change"), st.just(0)),
    st.tuples(st.just("delete"), st.just(0)),
)


def happen(world: SmallWorld, event: str, number: int) -> None:
    match event:
        case "look":
            world.look()
        case "pass":
            world.now_s += number / 10
        case "die" if number < len(world.loaded):
            world.end(list(world.loaded)[number])
        case "mute" if number < len(world.loaded):
            world.silent.add(list(world.loaded)[number])
        case "refuse":
            world.refusals = number
        case "load" if number < len(world.loaded):
            world.loaded[list(world.loaded)[number]] = True
        case "scale" if world.deployment is not None:
            world.deployment = msgspec.structs.replace(world.deployment, replicas=number)
        case "change" if world.deployment is not None:
            generation = world.deployment.generation + 1
            world.deployment = msgspec.structs.replace(world.deployment, generation=generation)
        case "delete":
            world.deployment = None


@settings(max_examples=120, deadline=None, print_blob=True)
@given(st.lists(events, max_size=60))
def test_any_history_ends_in_the_desired_state(history: list[tuple[str, int]]) -> None:
    world = SmallWorld()
    for event, number in history:
        happen(world, event, number)
    world.settle()
    if world.deployment is None:
        assert world.replicas == {}
        assert world.loaded == {}
        return
    states = [(r.state, r.generation) for r in world.replicas.values()]
    assert states == [(ReplicaState.ACTIVE, world.deployment.generation)] * (
        world.deployment.replicas
    )
    assert set(world.loaded) == set(world.replicas)


@settings(max_examples=60, deadline=None, print_blob=True)
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_rollout_never_serves_from_fewer_than_it_had(dies: list[bool]) -> None:
    world = SmallWorld()
    assert world.deployment is not None
    world.deployment = msgspec.structs.replace(world.deployment, replicas=2)
    world.settle()
    world.deployment = msgspec.structs.replace(world.deployment, generation=2)
    for new_dies in dies:
        world.look()
        world.now_s += 0.5
        for name in list(world.loaded):
            if world.replicas[name].generation == 2 and not world.loaded[name]:
                if new_dies:
                    del world.loaded[name]
                else:
                    world.loaded[name] = True
        serving = [r for r in world.replicas.values() if r.state is ReplicaState.ACTIVE]
        assert len(serving) >= 2
