"""What is due for a deployment, case by case."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from headrace.adapters.protocol import Readiness, ReadinessState
from headrace.control.actions import (
    Action,
    ChangeReplica,
    CreateReplica,
    DeleteReplica,
    DescribeVersion,
    LaunchReplica,
    StopReplica,
)
from headrace.control.decide import ControlTimes, decide, wordless_hint
from headrace.control.world import ModelFileState, ReplicaObservation, World
from headrace.spec.deployments import Deployment, Leaving, Replica, ReplicaState
from headrace.spec.models import FileHeader, ModelVersion
from headrace.weights.file_facts import FileFacts

times = ControlTimes()
here = ModelFileState(path="/models/m.gguf")
ready = Readiness(ReadinessState.READY)


def deployment(**changes: object) -> Deployment:
    base = Deployment(
        id="dep_1", name="d", parent_id="mod_1", create_time=0, model_version_id="ver_1"
    )
    return msgspec.structs.replace(base, **changes)


def replica(number: int = 0, **changes: object) -> Replica:
    base = Replica(id=f"rep_{number}", name=f"d-{number}", parent_id="dep_1", create_time=number)
    return msgspec.structs.replace(base, **changes)


def due(
    *replicas: Replica,
    wanted: Deployment | None,
    seen: Mapping[str, ReplicaObservation] | None = None,
    model_file: ModelFileState = here,
    now_s: float = 1000.0,
    is_frozen: bool = False,
) -> list[Action]:
    world = World(now_s, wanted, replicas, seen or {}, model_file, is_frozen=is_frozen)
    return decide(world, times)


def only_change(actions: list[Action]) -> Replica:
    (action,) = actions
    assert isinstance(action, ChangeReplica)
    return action.replica


def test_what_a_version_leaves_open_is_said_by_its_file_before_anything_starts() -> None:
    version = ModelVersion(
        id="ver_1", name="v1", parent_id="mod_1", create_time=0, source="m.gguf", format="own word"
    )
    header = FileHeader(format="gguf", quantization="Q4_0", parameters=7, family="llama")
    facts = FileFacts("ab" * 32, header)
    (action,) = due(
        replica(), wanted=deployment(), model_file=replace(here, facts=facts, version=version)
    )
    assert isinstance(action, DescribeVersion)
    told = action.version
    assert (told.sha256, told.quantization, told.parameters) == ("ab" * 32, "Q4_0", 7)
    assert told.header == header
    assert told.format == "own word"  # what was declared stays
    (action,) = due(
        replica(), wanted=deployment(), model_file=replace(here, facts=facts, version=told)
    )
    assert isinstance(action, LaunchReplica)


def test_missing_replicas_are_created_under_free_names() -> None:
    wanted = deployment(replicas=3)
    alive = {"rep_1": ReplicaObservation(alive=True, readiness=ready)}
    actions = due(replica(1, state=ReplicaState.ACTIVE), wanted=wanted, seen=alive)
    assert actions == [CreateReplica(wanted, "d-0"), CreateReplica(wanted, "d-2")]


def test_a_replica_waits_for_its_file_and_tells_how_far_it_is() -> None:
    fetching = ModelFileState(detail="fetching m", progress=0.25)
    told = only_change(due(replica(), wanted=deployment(), model_file=fetching))
    assert (told.state, told.detail, told.progress) == (ReplicaState.CREATING, "fetching m", 0.25)
    assert due(told, wanted=deployment(), model_file=fetching) == []


def test_a_replica_with_its_file_is_launched() -> None:
    wanted = deployment()
    launch = LaunchReplica(wanted, wanted.template, replica(), "/models/m.gguf")
    assert due(replica(), wanted=wanted) == [launch]


def test_a_process_left_by_an_earlier_control_plane_is_stopped_before_the_launch() -> None:
    seen = {"rep_0": ReplicaObservation(alive=True)}
    assert due(replica(), wanted=deployment(), seen=seen) == [StopReplica(replica())]


def test_loading_becomes_active_only_by_a_real_token() -> None:
    loading = replica(state=ReplicaState.LOADING, attempts=2, state_time=990)
    says_ready = {"rep_0": ReplicaObservation(alive=True, readiness=ready)}
    waiting = only_change(due(loading, wanted=deployment(), seen=says_ready))
    assert waiting.state is ReplicaState.LOADING
    assert "--capability" in waiting.detail
    assert due(waiting, wanted=deployment(), seen=says_ready) == []
    token = {"rep_0": ReplicaObservation(alive=True, readiness=ready, token_came=True)}
    active = only_change(due(loading, wanted=deployment(), seen=token))
    assert (active.state, active.attempts, active.state_time) == (ReplicaState.ACTIVE, 2, 1000)


def test_an_ended_process_is_failed_with_its_last_words_and_a_growing_pause() -> None:
    ended = {"rep_0": ReplicaObservation(alive=False, last_line="out of memory")}
    pauses = []
    for attempts in (0, 1, 2, 3, 50):
        loading = replica(state=ReplicaState.LOADING, attempts=attempts)
        told = only_change(due(loading, wanted=deployment(), seen=ended))
        assert (told.state, told.detail) == (ReplicaState.FAILED, "out of memory")
        assert told.retry_time is not None
        pauses.append(told.retry_time - 1000)
    assert pauses == [0, 1, 2, 4, 60]


@pytest.mark.parametrize(
    ("attempts", "served_s", "pause_s", "attempts_left"),
    [
        (1, 1.0, 0, 1),  # the first end: back at once
        (2, 1.0, 1, 2),
        (3, 1.0, 2, 3),
        (50, 1.0, 60, 50),
        (50, times.served_min_s, 0, 0),  # long forgiven
    ],
)
def test_what_ends_soon_after_every_token_comes_back_later_each_time(
    attempts: int, served_s: float, pause_s: float, attempts_left: int
) -> None:
    ended = {"rep_0": ReplicaObservation(alive=False, last_line="killed")}
    active = replica(state=ReplicaState.ACTIVE, attempts=attempts, state_time=1000 - served_s)
    told = only_change(due(active, wanted=deployment(), seen=ended))
    assert (told.state, told.attempts) == (ReplicaState.FAILED, attempts_left)
    assert told.retry_time == 1000 + pause_s


def test_an_engine_that_loads_again_keeps_its_count_unless_it_served_for_a_while() -> None:
    loading = Readiness(ReadinessState.LOADING, "restarting")
    seen = {"rep_0": ReplicaObservation(alive=True, readiness=loading)}
    for served_s, left in ((1.0, 4), (times.served_min_s, 0)):
        active = replica(state=ReplicaState.ACTIVE, attempts=4, state_time=1000 - served_s)
        assert only_change(due(active, wanted=deployment(), seen=seen)).attempts == left


def test_a_failed_replica_is_launched_again_when_its_pause_is_over() -> None:
    fallen = replica(state=ReplicaState.FAILED, attempts=1, retry_time=1005.0)
    assert due(fallen, wanted=deployment(), now_s=1004.9) == []
    (action,) = due(fallen, wanted=deployment(), now_s=1005.0)
    assert isinstance(action, LaunchReplica)


def test_loading_for_too_long_is_a_failure() -> None:
    loading = replica(state=ReplicaState.LOADING, state_time=1000)
    seen = {"rep_0": ReplicaObservation(alive=True)}
    late = 1000 + times.start_max_s
    stop, change = due(loading, wanted=deployment(), seen=seen, now_s=late)
    assert stop == StopReplica(loading)
    assert isinstance(change, ChangeReplica)
    assert change.replica.state is ReplicaState.FAILED


def test_an_engine_that_loads_again_leaves_the_router() -> None:
    active = replica(state=ReplicaState.ACTIVE)
    loading = Readiness(ReadinessState.LOADING, "restarting")
    seen = {"rep_0": ReplicaObservation(alive=True, readiness=loading)}
    told = only_change(due(active, wanted=deployment(), seen=seen))
    assert (told.state, told.detail) == (ReplicaState.LOADING, "restarting")


def test_silence_is_endured_for_a_while_and_forgiven_by_an_answer() -> None:
    silent = {"rep_0": ReplicaObservation(alive=True)}
    warned = only_change(due(replica(state=ReplicaState.ACTIVE), wanted=deployment(), seen=silent))
    assert warned.state is ReplicaState.ACTIVE
    assert due(warned, wanted=deployment(), seen=silent, now_s=1001) == []
    answered = {"rep_0": ReplicaObservation(alive=True, readiness=ready)}
    forgiven = only_change(due(warned, wanted=deployment(), seen=answered, now_s=1001))
    assert forgiven.retry_time is None
    stop, change = due(warned, wanted=deployment(), seen=silent, now_s=1000 + times.silence_max_s)
    assert isinstance(stop, StopReplica)
    assert isinstance(change, ChangeReplica)
    assert change.replica.state is ReplicaState.FAILED


def test_scaling_down_keeps_what_serves_and_drains_the_youngest() -> None:
    serving = [replica(n, state=ReplicaState.ACTIVE) for n in range(3)]
    fallen = replica(3, state=ReplicaState.FAILED, retry_time=2000.0)
    alive = {r.id: ReplicaObservation(alive=True, readiness=ready) for r in serving}
    actions = due(*serving, fallen, wanted=deployment(replicas=2), seen=alive)
    drained = [a.replica for a in actions if isinstance(a, ChangeReplica)]
    assert [(r.id, r.state) for r in drained] == [("rep_2", ReplicaState.DRAINING)]
    assert DeleteReplica(fallen) in actions
    assert len(actions) == 2


@pytest.mark.parametrize(
    ("running", "now_s", "stops"),
    [(0, 1000.5, False), (0, 1001.0, True), (3, 1001.0, False), (3, 1120.0, True)],
)
def test_a_draining_replica_stops_when_idle_or_overdue(
    running: int, now_s: float, stops: bool
) -> None:
    draining = replica(state=ReplicaState.DRAINING, state_time=1000.0, drain_deadline=1120.0)
    seen = {"rep_0": ReplicaObservation(alive=True, readiness=ready, running_requests=running)}
    actions = due(draining, wanted=None, seen=seen, now_s=now_s)
    assert actions == ([StopReplica(draining), DeleteReplica(draining)] if stops else [])


def test_a_new_generation_serves_before_the_old_one_drains() -> None:
    wanted = deployment(replicas=1, generation=2)
    old = replica(0, state=ReplicaState.ACTIVE, generation=1)
    alive = {r: ReplicaObservation(alive=True, readiness=ready) for r in ("rep_0", "rep_1")}
    assert due(old, wanted=wanted, seen=alive) == [CreateReplica(wanted, "d-1")]
    new = replica(1, state=ReplicaState.ACTIVE, generation=2)
    drained = only_change(due(old, new, wanted=wanted, seen=alive))
    assert (drained.id, drained.state) == ("rep_0", ReplicaState.DRAINING)


def test_nothing_is_due_when_all_is_as_desired() -> None:
    alive = {"rep_0": ReplicaObservation(alive=True, readiness=ready)}
    assert due(replica(state=ReplicaState.ACTIVE), wanted=deployment(), seen=alive) == []
    assert due(wanted=None) == []


def test_an_engine_that_says_it_hangs_is_replaced_soon_though_a_start_may_take_long() -> None:
    loading = replica(
        state=ReplicaState.LOADING, state_time=1000.0, launch_time=900.0, first_token_time=910.0
    )
    hung = ReplicaObservation(alive=True, readiness=Readiness(ReadinessState.HUNG, "no step"))
    assert only_change(due(loading, wanted=deployment(), seen={"rep_0": hung})).detail == "no step"
    late = 1000.0 + times.silence_max_s
    stop, change = due(loading, wanted=deployment(), seen={"rep_0": hung}, now_s=late)
    assert isinstance(stop, StopReplica)
    assert isinstance(change, ChangeReplica)
    assert change.replica.detail.startswith("no step; ended")


@pytest.mark.parametrize(("start_s", "bound_s"), [(10.0, times.recover_min_s), (100.0, 200.0)])
def test_one_that_loads_again_has_twice_the_time_of_its_own_start(
    start_s: float, bound_s: float
) -> None:
    loading = replica(
        state=ReplicaState.LOADING,
        state_time=1000.0,
        launch_time=100.0,
        first_token_time=100.0 + start_s,
    )
    seen = {
        "rep_0": ReplicaObservation(
            alive=True, readiness=Readiness(ReadinessState.LOADING, "restarting")
        )
    }
    early = due(loading, wanted=deployment(), seen=seen, now_s=1000.0 + bound_s - 0.1)
    assert not any(isinstance(action, StopReplica) for action in early)
    stop, _ = due(loading, wanted=deployment(), seen=seen, now_s=1000.0 + bound_s)
    assert isinstance(stop, StopReplica)


def test_nobody_is_ended_for_silence_while_many_are_silent_at_once() -> None:
    silent = {"rep_0": ReplicaObservation(alive=True)}
    warned = replica(state=ReplicaState.ACTIVE, retry_time=1000.0)
    spared = only_change(due(warned, wanted=deployment(), seen=silent, now_s=2000, is_frozen=True))
    assert (spared.state, spared.retry_time) == (ReplicaState.ACTIVE, 2000 + times.silence_max_s)
    assert due(spared, wanted=deployment(), seen=silent, now_s=2001, is_frozen=True) == []
    assert due(spared, wanted=deployment(), seen=silent, now_s=2014) == [], "it has its time anew"
    assert isinstance(due(warned, wanted=deployment(), seen=silent, now_s=2000)[0], StopReplica)
    ended = {"rep_0": ReplicaObservation(alive=False)}
    gone = only_change(due(warned, wanted=deployment(), seen=ended, is_frozen=True))
    assert gone.state is ReplicaState.FAILED, "what has ended is started again"


def test_a_replica_that_is_to_leave_serves_until_another_does() -> None:
    wanted = deployment(replicas=1)
    leaving = replica(0, state=ReplicaState.ACTIVE, leaving=Leaving.WHEN_REPLACED)
    seen = {name: ReplicaObservation(alive=True, readiness=ready) for name in ("rep_0", "rep_1")}
    assert due(leaving, wanted=wanted, seen=seen) == [CreateReplica(wanted, "d-1")]
    loading = replica(1, state=ReplicaState.LOADING, state_time=999.0, detail=wordless_hint)
    assert due(leaving, loading, wanted=wanted, seen=seen) == []
    serving = msgspec.structs.replace(loading, state=ReplicaState.ACTIVE)
    drained = only_change(due(leaving, serving, wanted=wanted, seen=seen))
    assert (drained.id, drained.state) == ("rep_0", ReplicaState.DRAINING)


def test_a_replica_that_leaves_at_once_drains_and_another_waits_for_a_place() -> None:
    wanted = deployment(replicas=1)
    leaving = replica(0, state=ReplicaState.ACTIVE, leaving=Leaving.AT_ONCE)
    seen = {"rep_0": ReplicaObservation(alive=True, readiness=ready)}
    drained, created = due(leaving, wanted=wanted, seen=seen)
    assert isinstance(drained, ChangeReplica)
    assert drained.replica.state is ReplicaState.DRAINING
    assert created == CreateReplica(wanted, "d-1")


def test_a_replica_without_a_place_is_not_started_where_there_are_nodes() -> None:
    wanted = deployment()
    for node_id, count in (("", 0), ("nod_a", 1)):
        waiting = replica(0, node_id=node_id)
        world = World(1000.0, wanted, (waiting,), {}, here, has_nodes=True)
        assert len(decide(world, times)) == count


def test_a_replica_on_a_node_waits_for_the_file_there() -> None:
    wanted = deployment()
    placed = replica(0, node_id="nod_a")
    files = {"rep_0": ModelFileState(detail="fetching the model", progress=0.5)}
    world = World(1000.0, wanted, (placed,), {}, here, files_on_nodes=files, has_nodes=True)
    assert only_change(decide(world, times)).progress == 0.5
    files["rep_0"] = ModelFileState(path="/there/m.gguf")
    (launch,) = decide(world, times)
    assert isinstance(launch, LaunchReplica)
    assert launch.model_path == "/there/m.gguf"
