"""What is due for one deployment, from what is seen: a pure function.

    CREATING ──launch──> LOADING ──ready and a real token──> ACTIVE
       ^                  │   ^                                │
       │                  │   └──────── not ready any more ────┤
    (wanted)       ended or too slow                         ended
                          v                                    │
                       FAILED <────────────────────────────────┘
                          └──after its retry time──> launch

    ACTIVE, its node is drained ──another serves in its stead──> DRAINING
    any but DRAINING ──not wanted any more──> DRAINING ──idle or deadline──> stopped, forgotten

It never depends on what happened before, only on the world, so that lost, repeated and reordered
wake-ups end in the same state. How many replicas of a new and an old generation there are meanwhile
is `rollout`'s.
"""

import math
from dataclasses import dataclass

import msgspec

from headrace.adapters.protocol import Readiness, ReadinessState
from headrace.control.actions import (
    Action,
    ChangeDeployment,
    ChangeReplica,
    CreateReplica,
    DeleteReplica,
    DescribeVersion,
    LaunchReplica,
    StopReplica,
)
from headrace.control.replica_roles import changed_roles
from headrace.control.rollout import Staff, next_deployment, staff
from headrace.control.version_facts import described
from headrace.control.world import ReplicaObservation, World
from headrace.spec.deployments import Deployment, Leaving, Replica, ReplicaState

gone = ReplicaObservation(alive=False)
wordless_hint = (
    "its engine is ready, but gave no token, or no vector of a model that is declared to make "
    "them; declare what the model can (`--capability`)"
)


@dataclass(frozen=True, slots=True)
class ControlTimes:
    """How long things may take, in seconds."""

    start_max_s: float = 900.0  # LOADING; large models from slow disks take minutes
    drain_max_s: float = 120.0  # DRAINING with requests that still run
    drain_min_s: float = 1.0  # until every gateway's snapshot has left it out
    silence_max_s: float = 15.0  # without an answer to probes, or without progress by its own word
    recover_min_s: float = 30.0  # LOADING again after it served; twice its own start if longer
    served_min_s: float = 30.0  # ACTIVE for so long: what ends it then is its first fault again
    backoff_first_s: float = 1.0
    backoff_max_s: float = 60.0

    def backoff_s(self, attempts: int) -> float:
        """How long to wait after that many launches in a row that came to nothing."""
        if attempts <= 0:
            return 0.0
        return float(min(self.backoff_max_s, self.backoff_first_s * 2 ** min(attempts - 1, 16)))


def decide(world: World, times: ControlTimes) -> list[Action]:
    """The actions that are due now, in the order to apply them; empty when all is as desired.

    A step of a rollout is written before anything is done for it, and so is a replica's role."""
    deployment = world.deployment
    if deployment is not None:
        moved = next_deployment(deployment, world.replicas, world.health, world.now_s)
        if moved != deployment:
            return [ChangeDeployment(moved)]
    file = world.model_file
    if file.version is not None and file.facts is not None:
        told = described(file.version, file.facts)
        if told != file.version:  # first, so that whatever starts has these bytes
            return [DescribeVersion(told)]
    wanted, unwanted = split_by_need(world)
    if deployment is not None and (changed := changed_roles(deployment, wanted)):
        return [ChangeReplica(replica) for replica in changed]
    actions: list[Action] = []
    for replica in unwanted:
        actions += retire(world, times, replica)
    for replica in wanted:
        actions += advance(world, times, replica)
    if deployment is not None:
        missing = staff(deployment, world.replicas, world.now_s).current - sum(
            replica.generation == deployment.generation and replica.leaving is Leaving.NOT
            for replica in wanted
        )
        names = free_names(deployment, world.replicas, max(0, missing))
        actions += [CreateReplica(deployment, name) for name in names]
    return actions


def split_by_need(world: World) -> tuple[list[Replica], list[Replica]]:
    """The replicas to keep and those to retire; what drains is never taken back."""
    deployment = world.deployment
    live = [replica for replica in world.replicas if not must_go(replica)]
    draining = [replica for replica in world.replicas if must_go(replica)]
    if deployment is None:
        return [], [*live, *draining]
    wanted = staff(deployment, world.replicas, world.now_s)
    live.sort(key=worth, reverse=True)
    current = [replica for replica in live if replica.generation == deployment.generation]
    former = [replica for replica in live if replica.generation != deployment.generation]
    serving = [replica for replica in former if can_stay(deployment, replica, wanted)]
    other = [replica for replica in former if replica not in serving]
    current_kept, current_surplus = split_replaced(current, wanted.current)
    former_kept, former_surplus = split_replaced(serving, wanted.former)
    unwanted = [*draining, *other, *current_surplus, *former_surplus]
    return [*current_kept, *former_kept], unwanted


def must_go(replica: Replica) -> bool:
    """Whether a replica ends whatever else there is."""
    return replica.state is ReplicaState.DRAINING or replica.leaving is Leaving.AT_ONCE


def split_replaced(replicas: list[Replica], count: int) -> tuple[list[Replica], list[Replica]]:
    """Those to keep and the rest: what leaves stays as long as too few others serve."""
    staying = [replica for replica in replicas if replica.leaving is Leaving.NOT]
    leaving = [replica for replica in replicas if replica.leaving is not Leaving.NOT]
    kept, surplus = split_at(staying, count)
    serving = sum(replica.state is ReplicaState.ACTIVE for replica in kept)
    bridging, replaced = split_at(leaving, count - serving)
    return [*kept, *bridging], [*surplus, *replaced]


def can_stay(deployment: Deployment, replica: Replica, wanted: Staff) -> bool:
    """Whether a replica of another generation is worth keeping for a while."""
    if replica.state is ReplicaState.ACTIVE:
        return True
    return wanted.relaunches_former and deployment.template_of(replica.generation) is not None


def worth(replica: Replica) -> tuple[int, float]:
    """What to keep first: what serves, then what loads, then the older."""
    order = (
        ReplicaState.FAILED,
        ReplicaState.CREATING,
        ReplicaState.LOADING,
        ReplicaState.ACTIVE,
    )
    return order.index(replica.state), -replica.create_time


def split_at(replicas: list[Replica], count: int) -> tuple[list[Replica], list[Replica]]:
    """The first `count` and the rest; a negative count keeps none."""
    cut = max(0, count)
    return replicas[:cut], replicas[cut:]


def free_names(deployment: Deployment, replicas: tuple[Replica, ...], count: int) -> list[str]:
    """The lowest numbers that no replica of this deployment has."""
    taken = {replica.name for replica in replicas}
    names: list[str] = []
    number = 0
    while len(names) < count:
        name = f"{deployment.name}-{number}"
        if name not in taken:
            names.append(name)
        number += 1
    return names


def retire(world: World, times: ControlTimes, replica: Replica) -> list[Action]:
    """One step towards the end of a replica that is not wanted."""
    seen = world.observations.get(replica.id, gone)
    if not seen.alive:
        return [DeleteReplica(replica)]
    if replica.state is not ReplicaState.DRAINING:
        if replica.state is not ReplicaState.ACTIVE:
            return [StopReplica(replica), DeleteReplica(replica)]
        deadline = world.now_s + times.drain_max_s
        return [moved(world, replica, ReplicaState.DRAINING, "draining", drain_deadline=deadline)]
    left_out = world.now_s >= replica.state_time + times.drain_min_s
    overdue = replica.drain_deadline is not None and world.now_s >= replica.drain_deadline
    if overdue or (left_out and seen.running_requests == 0):
        return [StopReplica(replica), DeleteReplica(replica)]
    return []


def advance(world: World, times: ControlTimes, replica: Replica) -> list[Action]:
    """One step of a wanted replica towards ACTIVE."""
    seen = world.observations.get(replica.id, gone)
    match replica.state:
        case ReplicaState.CREATING | ReplicaState.FAILED:
            return launch_when_due(world, replica, seen)
        case ReplicaState.LOADING:
            return watch_loading(world, times, replica, seen)
        case ReplicaState.ACTIVE:
            return watch_active(world, times, replica, seen)
        case ReplicaState.DRAINING:
            raise AssertionError("a draining replica is never wanted")


def launch_when_due(world: World, replica: Replica, seen: ReplicaObservation) -> list[Action]:
    """Launch a replica that has no process, once the file is here and its pause is over."""
    if seen.alive:  # of an earlier life of the control plane, which did not write that down
        return [StopReplica(replica)]
    if replica.retry_time is not None and world.now_s < replica.retry_time:
        return []
    deployment = world.deployment
    assert deployment is not None
    template = deployment.template_of(replica.generation)
    if template is None:  # of a generation before the former one: it cannot be started again
        return [DeleteReplica(replica)]
    needs_node = world.has_nodes and template.upstream is None
    if needs_node and not replica.node_id:  # `nodes.placing` gives it one, or says why not
        return []
    is_current = replica.generation == deployment.generation
    model_file = world.model_file if is_current else world.former_model_file
    model_file = world.files_on_nodes.get(replica.id, model_file)
    if model_file.path is None:
        told = msgspec.structs.replace(
            replica, detail=model_file.detail, progress=model_file.progress
        )
        return [] if told == replica else [ChangeReplica(told)]
    return [LaunchReplica(deployment, template, replica, model_file.path)]


def watch_loading(
    world: World, times: ControlTimes, replica: Replica, seen: ReplicaObservation
) -> list[Action]:
    """Follow a process until one real token came from it."""
    if not seen.alive:
        return [failed(world, times, replica, seen.last_line or "the process ended while loading")]
    if seen.token_came:
        served = msgspec.structs.replace(replica, first_token_time=world.now_s)
        return [moved(world, served, ReplicaState.ACTIVE, "serving")]
    if seen.readiness is not None and seen.readiness.state is ReadinessState.FAILED:
        return [StopReplica(replica), failed(world, times, replica, seen.readiness.detail)]
    patience = patience_s(times, replica, seen)
    if world.now_s >= replica.state_time + patience:
        words = "not ready" if seen.readiness is None else words_of(seen.readiness) or "not ready"
        detail = f"{words}; ended after {patience:g} s of that"
        return [StopReplica(replica), failed(world, times, replica, detail)]
    if seen.readiness is None:
        return []
    told = msgspec.structs.replace(
        replica, detail=words_of(seen.readiness), progress=seen.readiness.progress
    )
    return [] if told == replica else [ChangeReplica(told)]


def words_of(readiness: Readiness) -> str:
    """What an engine that does not serve yet says of itself."""
    return wordless_hint if readiness.state is ReadinessState.READY else readiness.detail


def patience_s(times: ControlTimes, replica: Replica, seen: ReplicaObservation) -> float:
    """How long a process may be LOADING: long for its first time, short once it has served."""
    if replica.first_token_time is None or replica.launch_time is None:
        return times.start_max_s
    if seen.readiness is None or seen.readiness.state is ReadinessState.HUNG:
        return times.silence_max_s
    return max(times.recover_min_s, 2.0 * (replica.first_token_time - replica.launch_time))


def watch_active(
    world: World, times: ControlTimes, replica: Replica, seen: ReplicaObservation
) -> list[Action]:
    """Notice an end, a restart of its engine, or silence."""
    if not seen.alive:
        return [failed(world, times, replica, seen.last_line or "the process ended")]
    if seen.readiness is None:
        return endure_silence(world, times, replica)
    if seen.readiness.state is not ReadinessState.READY:
        attempts = attempts_in_a_row(world, times, replica)
        detail = seen.readiness.detail
        return [moved(world, replica, ReplicaState.LOADING, detail, attempts=attempts)]
    if replica.retry_time is not None:
        return [ChangeReplica(msgspec.structs.replace(replica, retry_time=None))]
    return []


def endure_silence(world: World, times: ControlTimes, replica: Replica) -> list[Action]:
    """Give an ACTIVE replica that does not answer some time, kept in its `retry_time`.

    While all is frozen it begins anew: what was cut off answers a little later than the thaw."""
    left_s = -math.inf if replica.retry_time is None else replica.retry_time - world.now_s
    if replica.retry_time is None or (world.is_frozen and left_s < times.silence_max_s / 2):
        silent_until = world.now_s + times.silence_max_s
        return [ChangeReplica(msgspec.structs.replace(replica, retry_time=silent_until))]
    if left_s > 0:
        return []
    detail = f"no answer to probes for {times.silence_max_s:g} s"
    return [StopReplica(replica), failed(world, times, replica, detail)]


def failed(world: World, times: ControlTimes, replica: Replica, detail: str) -> ChangeReplica:
    """FAILED with its reason and the time of the next try.

    One that served comes back at once, but later each time if it keeps ending soon after."""
    attempts = attempts_in_a_row(world, times, replica)
    served = replica.state is ReplicaState.ACTIVE
    retry_time = world.now_s + times.backoff_s(attempts - 1 if served else attempts)
    return moved(
        world, replica, ReplicaState.FAILED, detail, attempts=attempts, retry_time=retry_time
    )


def attempts_in_a_row(world: World, times: ControlTimes, replica: Replica) -> int:
    """Its launches since it last served for a while."""
    served_s = world.now_s - replica.state_time
    if replica.state is ReplicaState.ACTIVE and served_s >= times.served_min_s:
        return 0
    return replica.attempts


def moved(
    world: World,
    replica: Replica,
    state: ReplicaState,
    detail: str,
    *,
    attempts: int | None = None,
    retry_time: float | None = None,
    drain_deadline: float | None = None,
) -> ChangeReplica:
    """The replica in another state, since now."""
    return ChangeReplica(
        msgspec.structs.replace(
            replica,
            state=state,
            state_time=world.now_s,
            detail=detail,
            progress=None,
            attempts=replica.attempts if attempts is None else attempts,
            retry_time=retry_time,
            drain_deadline=drain_deadline,
        )
    )
