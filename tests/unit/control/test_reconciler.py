"""The reconciler over a real store and a fake machine: what runs follows what is desired."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from headrace.adapters.protocol import EngineAdapter, EngineLoad, Readiness, ReadinessState
from headrace.adapters.registry import all_adapters
from headrace.base.errors import SetupError
from headrace.control.applier import Applier
from headrace.control.decide import ControlTimes
from headrace.control.leader import Leader
from headrace.control.model_files import ModelFiles
from headrace.control.observer import Observer
from headrace.control.probe import Question
from headrace.control.reconciler import Reconciler
from headrace.launchers.protocol import LaunchSpec
from headrace.sim.clock import ManualClock
from headrace.sim.launcher import FakeLauncher, FakeMachine
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.engine_key import engine_key_of
from headrace.spec.models import Model, ModelVersion
from headrace.storage import Database

pepper = bytes(range(32))
passes_max = 50


@dataclass
class MachineProbe:
    """Answers for the engines of a fake machine: all that run are ready, unless told otherwise."""

    readiness_state: ReadinessState = ReadinessState.READY
    running_requests: int = 0
    generates: bool = True
    asked: set[Question] = field(default_factory=set)

    async def readiness(self, adapter: EngineAdapter, replica: Replica) -> Readiness | None:
        return Readiness(self.readiness_state)

    async def answers(self, adapter: EngineAdapter, replica: Replica, question: Question) -> bool:
        self.asked.add(question)
        return self.generates

    async def load(self, adapter: EngineAdapter, replica: Replica) -> EngineLoad:
        return EngineLoad(running_requests=self.running_requests, waiting_requests=0)


@dataclass
class Site:
    """One control plane over a store and a machine."""

    database: Database
    clock: ManualClock
    cache_dir: Path
    machine: FakeMachine = field(default_factory=FakeMachine)
    probe: MachineProbe = field(default_factory=MachineProbe)
    deployment_id: str = "dep_1"

    def reconciler(
        self, launcher: FakeLauncher | None = None, leader: Leader | None = None
    ) -> Reconciler:
        """A control plane that starts now, as after a crash of the former one."""
        launcher = launcher or FakeLauncher(self.machine)
        adapters = {adapter.name: adapter for adapter in all_adapters}
        times = ControlTimes()
        store = self.database.store
        observer = Observer(
            store=store,
            launcher=launcher,
            probe=self.probe,
            model_files=ModelFiles(self.cache_dir, self.clock),
            adapters=adapters,
            clock=self.clock,
        )
        applier = Applier(
            store=store,
            launcher=launcher,
            adapters=adapters,
            clock=self.clock,
            times=times,
            cpu_count=8,
            pepper=pepper,
        )
        return Reconciler(observer, applier, self.clock, times, store.revision, leader=leader)

    def replicas(self) -> list[Replica]:
        return self.database.store.list(Replica, parent_id=self.deployment_id)

    def deployment(self) -> Deployment:
        return self.database.store.get(Deployment, self.deployment_id)

    def change(self, **changes: object) -> None:
        self.database.store.update(msgspec.structs.replace(self.deployment(), **changes))

    async def settle(self, reconciler: Reconciler) -> None:
        """Pass after pass, a second apart, until nothing is due."""
        for _ in range(passes_max):
            if await reconciler.reconcile(self.deployment_id):
                return
            self.clock.advance(1.0)
            await asyncio.sleep(0)  # the thread that looks for the model file
        raise AssertionError(f"not settled: {self.replicas()}")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    model_file = tmp_path / "model.gguf"
    model_file.write_bytes(b"weights")
    clock = ManualClock()
    database = open_sqlite_copy(tmp_path / "headrace.db", clock)
    store = database.store
    store.create(Model(id="mod_1", name="small", create_time=0))
    store.create(
        ModelVersion(
            id="ver_1", name="v1", parent_id="mod_1", create_time=0, source=str(model_file)
        )
    )
    store.create(
        Deployment(
            id="dep_1",
            name="small",
            parent_id="mod_1",
            create_time=0,
            model_version_id="ver_1",
            replicas=2,
        )
    )
    yield Site(database, clock, tmp_path / "cache")
    database.close()


async def test_a_deployment_becomes_serving_replicas_with_keys_of_their_own(site: Site) -> None:
    await site.settle(site.reconciler())
    replicas = site.replicas()
    assert [r.state for r in replicas] == [ReplicaState.ACTIVE] * 2
    keys = [engine_key_of(pepper, replica) for replica in replicas]
    assert len({r.address for r in replicas} | set(keys)) == 4
    for replica, key in zip(replicas, keys, strict=True):
        spec = site.machine.running(replica.id).spec
        assert key in spec.environment.values()
        assert not any(key in word for word in spec.argv)
        assert key.encode() not in msgspec.json.encode(replica), "the store has no key"
        assert "4" in spec.argv, "each of two replicas has half of the eight cores"


async def test_an_ended_process_comes_back_under_another_key(site: Site) -> None:
    reconciler = site.reconciler()
    await site.settle(reconciler)
    before = site.replicas()[0]
    site.machine.end(before.id, -9, "killed")
    await reconciler.reconcile(site.deployment_id)
    fallen = site.database.store.get(Replica, before.id)
    assert fallen.state is ReplicaState.FAILED
    assert fallen.detail == "the process was ended by signal 9: killed"
    await site.settle(reconciler)
    after = site.database.store.get(Replica, before.id)
    assert after.state is ReplicaState.ACTIVE
    assert engine_key_of(pepper, after) != engine_key_of(pepper, before)
    assert engine_key_of(pepper, after) in site.machine.running(after.id).spec.environment.values()


async def test_what_runs_under_a_stored_key_is_kept_and_its_next_launch_stores_none(
    site: Site,
) -> None:
    reconciler = site.reconciler()
    await site.settle(reconciler)
    store, started = site.database.store, site.machine.start_count
    now = site.replicas()[0]
    before = store.update(msgspec.structs.replace(now, engine_key="k" * 64, engine_key_salt=""))
    await site.settle(reconciler)
    assert site.machine.start_count == started
    assert engine_key_of(pepper, store.get(Replica, before.id)) == "k" * 64
    site.machine.end(before.id, -9, "killed")
    await reconciler.reconcile(site.deployment_id)
    await site.settle(reconciler)
    after = store.get(Replica, before.id)
    assert after.state is ReplicaState.ACTIVE
    assert after.engine_key == ""
    assert engine_key_of(pepper, after) in site.machine.running(after.id).spec.environment.values()


async def test_a_new_control_plane_adopts_what_runs(site: Site) -> None:
    await site.settle(site.reconciler())
    started = site.machine.start_count
    await site.settle(site.reconciler())
    assert site.machine.start_count == started


async def test_a_crash_between_the_record_and_the_start_is_healed(site: Site) -> None:
    class CrashingLauncher(FakeLauncher):
        def start(self, spec: LaunchSpec) -> str:
            raise RuntimeError("the control plane dies here")

    crashing = site.reconciler(CrashingLauncher(site.machine))
    with pytest.raises(RuntimeError):
        await site.settle(crashing)
    assert ReplicaState.LOADING in {r.state for r in site.replicas()}
    await site.settle(site.reconciler())
    assert len(site.machine.launches) == 2


async def test_a_start_that_fails_is_told_and_tried_again(site: Site) -> None:
    class BrokenLauncher(FakeLauncher):
        broken = True

        def start(self, spec: LaunchSpec) -> str:
            if self.broken:
                raise SetupError("no memory for a process")
            return super().start(spec)

    launcher = BrokenLauncher(site.machine)
    reconciler = site.reconciler(launcher)
    for _ in range(passes_max):
        await reconciler.reconcile(site.deployment_id)
        site.clock.advance(0.01)
    assert {r.detail for r in site.replicas()} == {"no memory for a process"}
    launcher.broken = False
    site.clock.advance(60.0)
    await site.settle(reconciler)


async def test_an_engine_that_nobody_knows_is_a_failure_with_its_reason(site: Site) -> None:
    site.change(engine="unheard-of", replicas=1)
    reconciler = site.reconciler()
    for _ in range(passes_max):
        await reconciler.reconcile(site.deployment_id)
        site.clock.advance(0.01)
    (replica,) = site.replicas()
    assert replica.state is ReplicaState.FAILED
    assert "there is no engine 'unheard-of'" in replica.detail
    for _ in range(20):
        site.clock.advance(60.0)
        await reconciler.reconcile(site.deployment_id)
    (replica,) = site.replicas()
    assert replica.retry_time == site.clock.wall_s() + ControlTimes().backoff_max_s


async def test_what_still_has_requests_drains_before_it_is_stopped(site: Site) -> None:
    reconciler = site.reconciler()
    await site.settle(reconciler)
    site.probe.running_requests = 3
    site.change(replicas=1)
    for _ in range(5):
        await reconciler.reconcile(site.deployment_id)
        site.clock.advance(1.0)
    assert sorted(r.state for r in site.replicas()) == [ReplicaState.ACTIVE, ReplicaState.DRAINING]
    assert len(site.machine.launches) == 2
    site.probe.running_requests = 0
    await site.settle(reconciler)
    assert len(site.machine.launches) == len(site.replicas()) == 1


async def test_a_deleted_deployment_leaves_nothing(site: Site) -> None:
    reconciler = site.reconciler()
    await site.settle(reconciler)
    site.database.store.delete(site.deployment())
    await site.settle(reconciler)
    assert site.replicas() == []
    assert site.machine.launches == {}


async def test_the_loop_follows_the_store_and_stops_orphans(site: Site) -> None:
    launcher = FakeLauncher(site.machine)
    launcher.start(LaunchSpec("rep_unknown", ("engine",)))
    stop = asyncio.Event()
    loop = asyncio.create_task(site.reconciler(launcher).run(stop))
    async with asyncio.timeout(30):
        while [r.state for r in site.replicas()] != [ReplicaState.ACTIVE] * 2:
            site.clock.advance(1.0)
            await asyncio.sleep(0.01)
        while any(launch.spec.name == "rep_unknown" for launch in site.machine.launches.values()):
            site.clock.advance(1.0)
            await asyncio.sleep(0.01)
    stop.set()
    await loop


class OneLock:
    """A lock of which there is one, as a database has it."""

    def __init__(self) -> None:
        self.holder: object | None = None

    def candidate(self) -> "Candidate":
        return Candidate(self)


class Candidate:
    """One control plane's claim to the lock."""

    def __init__(self, lock: OneLock) -> None:
        self._lock = lock

    def acquire(self) -> bool:
        if self._lock.holder is None:
            self._lock.holder = self
        return self.renew()

    def renew(self) -> bool:
        return self._lock.holder is self

    def release(self) -> None:
        if self.renew():
            self._lock.holder = None


async def test_only_the_leader_acts_and_another_takes_over(site: Site) -> None:
    lock = OneLock()
    first, second = Leader(lock.candidate()), Leader(lock.candidate())
    assert await first.ask()
    assert not await second.ask()
    follower = site.reconciler(leader=second)
    for _ in range(3):
        await follower.reconcile(site.deployment_id)
    assert site.replicas() == []
    await site.settle(site.reconciler(leader=first))
    started = site.machine.start_count
    lock.holder = None  # the first one was cut off, and was not told
    assert await second.ask()
    site.change(replicas=3)
    await site.reconciler(leader=first).reconcile(site.deployment_id)
    assert len(site.replicas()) == 2, "who lost the lock does nothing more"
    await site.settle(follower)
    assert len(site.replicas()) == 3
    assert site.machine.start_count == started + 1
    await second.resign()
    assert await first.ask()


async def test_a_deployment_whose_model_was_deleted_is_not_hammered(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    store = site.database.store
    store.delete(store.get(Model, "mod_1"))
    reconciler = site.reconciler()
    stop = asyncio.Event()
    loop = asyncio.create_task(reconciler.run(stop))
    async with asyncio.timeout(30):
        while site.clock.monotonic_s() < 60.0:
            site.clock.advance(0.25)
            await asyncio.sleep(0.01)
    stop.set()
    await loop
    looks = [record for record in caplog.records if "again in" in record.message]
    assert 3 <= len(looks) <= 12, "doubling pauses, not one look each quarter of a second"


@pytest.mark.parametrize("engine", ["vllm", "transformers"])  # counts tokens; is asked for one
async def test_a_model_without_words_serves_as_long_as_its_engine_is_ready(
    site: Site, engine: str
) -> None:
    store = site.database.store
    version = store.get(ModelVersion, "ver_1")
    store.update(msgspec.structs.replace(version, capabilities=("transcription",)))
    store.update(msgspec.structs.replace(store.get(Deployment, "dep_1"), engine=engine, replicas=1))
    site.probe.generates, site.probe.running_requests = False, 1
    reconciler = site.reconciler()
    await site.settle(reconciler)
    started = site.machine.start_count
    for _ in range(60):
        site.clock.advance(5.0)
        await reconciler.reconcile(site.deployment_id)
        await asyncio.sleep(0)
    assert [each.state for each in site.replicas()] == [ReplicaState.ACTIVE]
    assert site.machine.start_count == started


async def test_a_model_of_embeddings_serves_once_it_gave_one(site: Site) -> None:
    store = site.database.store
    version = store.get(ModelVersion, "ver_1")
    store.update(msgspec.structs.replace(version, capabilities=("embeddings",)))
    store.update(msgspec.structs.replace(store.get(Deployment, "dep_1"), replicas=1))
    site.probe.generates = False
    reconciler = site.reconciler()
    for _ in range(10):
        site.clock.advance(1.0)
        await reconciler.reconcile(site.deployment_id)
    assert [each.state for each in site.replicas()] == [ReplicaState.LOADING]
    site.probe.generates = True
    await site.settle(reconciler)
    assert [each.state for each in site.replicas()] == [ReplicaState.ACTIVE]
    assert site.probe.asked == {Question.EMBEDDING}


@pytest.mark.parametrize(
    ("capabilities", "writes"),
    [((), True), (("chat",), True), (("chat", "embeddings"), True), (("embeddings",), False),
     (("speech", "transcription"), False), (("something",), True)],
)  # fmt: skip
def test_a_version_writes_text_unless_it_declares_other_things_alone(
    capabilities: tuple[str, ...], writes: bool
) -> None:
    version = ModelVersion(
        id="ver_1", name="v1", create_time=0, source="m.gguf", capabilities=capabilities
    )
    assert version.writes_text is writes


@pytest.mark.parametrize(
    ("engine", "running", "is_hung"),
    [
        ("vllm", 1, True),  # its counters stand still while a request runs
        ("vllm", 0, False),
        ("transformers", 0, True),  # it counts nothing, and is asked for a token
        ("headrace", 1, False),  # it tells itself
    ],
)
async def test_a_replica_that_answers_and_generates_nothing_is_started_anew(
    site: Site, engine: str, running: int, is_hung: bool
) -> None:
    store = site.database.store
    store.update(msgspec.structs.replace(store.get(Deployment, "dep_1"), engine=engine, replicas=1))
    reconciler = site.reconciler()
    await site.settle(reconciler)
    site.probe.generates, site.probe.running_requests = False, running
    started = site.machine.start_count
    for _ in range(60):
        site.clock.advance(5.0)
        await reconciler.reconcile(site.deployment_id)
        await asyncio.sleep(0)
    assert (site.machine.start_count > started) is is_hung
    site.probe.generates, site.probe.running_requests = True, 0
    await site.settle(reconciler)
