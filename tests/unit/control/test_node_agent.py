"""Agents and the control plane's side of them, over a real store and fake machines."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.base.errors import Unavailable
from headrace.base.ids import new_id
from headrace.control.model_files import ModelFiles, retry_after_s
from headrace.control.nodes import fleet_launcher
from headrace.control.nodes.agent import Worker
from headrace.control.nodes.book import NodeBook
from headrace.control.nodes.fleet_launcher import FleetLauncher
from headrace.control.nodes.machine import islands_of, read_accelerators, read_sockets, type_of
from headrace.control.nodes.orders import OrderBook
from headrace.control.nodes.ports import PortFinder
from headrace.control.nodes.report_api import NodeReportApi, report_path
from headrace.launchers.protocol import LaunchSpec, LaunchState, Resources
from headrace.sim.child_process import until
from headrace.sim.clock import ManualClock
from headrace.sim.launcher import FakeLauncher, FakeMachine, missing_program
from headrace.sim.progress import SilentProgress
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Deployment, Replica
from headrace.spec.engine_key import engine_key_of
from headrace.spec.models import ModelVersion
from headrace.spec.nodes import (
    Inventory,
    ModelOrder,
    Node,
    NodeDevice,
    NodeLaunch,
    NodeOrders,
    NodeReport,
    NodeState,
)
from headrace.spec.prefix_key import prefix_cache_key
from headrace.spec.token_format import node_tokens
from headrace.storage import Database
from headrace.weights.local_path import digest_of_files
from headrace.weights.sources import resolve

pepper = b"p" * 32
secret = b"s" * 32


@dataclass
class Site:
    """A control plane's side, and machines with agents."""

    database: Database
    clock: ManualClock
    directory: Path
    here: FakeMachine = field(default_factory=FakeMachine)
    leads: bool = True
    sequence: int = 0

    def __post_init__(self) -> None:
        store = self.database.store
        self.book = NodeBook(self.clock.monotonic_s())
        self.launcher = FleetLauncher(store, self.book, FakeLauncher(self.here), self.clock, pepper)
        self.api = NodeReportApi(
            store=store,
            pepper=pepper,
            book=self.book,
            orders=OrderBook(store, 1.0, pepper),
            clock=self.clock,
            leads=lambda: self.leads,
        )

    def node(self, name: str = "a", **changes: object) -> Node:
        base = Node(
            id=new_id(Node.id_prefix, self.clock),
            name=name,
            create_time=0,
            secret_hmac=node_tokens.digest(pepper, secret.hex()),
            state=NodeState.READY,
        )
        return self.database.store.create(msgspec.structs.replace(base, **changes))

    def worker(self, machine: FakeMachine) -> Worker:
        files = ModelFiles(self.directory, self.clock)
        return Worker(FakeLauncher(machine), files, lambda: (4001, 4002))

    async def ask(self, token: str, body: bytes, path: str = report_path) -> tuple[int, bytes]:
        """A request as the server would pass it on."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"authorization", f"Bearer {token}".encode())],
        }
        await self.api(scope, receive, send)
        answer = b"".join(m["body"] for m in sent if m["type"] == "http.response.body")
        return sent[0]["status"], answer

    async def round(self, node: Node, worker: Worker) -> NodeOrders:
        """One report and what it orders, done as far as one step goes."""
        self.sequence += 1
        report = NodeReport(
            life="one",
            sequence=self.sequence,
            inventory=inventory,
            launches=worker.launches(),
            models=worker.models(),
            ports=worker.free_ports(),
            logs=worker.logs(),
        )
        status, body = await self.ask(
            node_tokens.format(node.id, secret), msgspec.json.encode(report)
        )
        assert status == 200, body
        orders = msgspec.json.decode(body, type=NodeOrders)
        await worker.obey(orders)
        return orders


inventory = Inventory(
    devices=(NodeDevice(id="cpu0", device_type="CPU", memory_bytes=1 << 30, is_shared=True),),
    cpu_count=2.0,
    memory_bytes=1 << 30,
    address="10.0.0.7",
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    clock = ManualClock()
    database = open_sqlite_copy(tmp_path / "store.db", clock)
    yield Site(database, clock, tmp_path)
    database.close()


def spec(name: str, node: Node | None, program: str = "/engine") -> LaunchSpec:
    where = Resources(node_id="" if node is None else node.id, device_ids=("cpu0",))
    return LaunchSpec(name, (program, "--port", "4001"), {"KEY": "secret"}, resources=where)


async def test_an_order_runs_on_its_node_and_ends_with_the_order(site: Site) -> None:
    node, machine = site.node(), FakeMachine()
    worker = site.worker(machine)
    await site.round(node, worker)
    place = site.launcher.place("rep_1", Resources(node_id=node.id))
    assert place.address == f"http://10.0.0.7:{place.port}"
    launch_id = site.launcher.start(spec("rep_1", node))
    (waiting,) = site.launcher.list()
    assert (waiting.name, waiting.state) == ("rep_1", LaunchState.RUNNING)
    await site.round(node, worker)
    assert machine.running(launch_id).spec.environment["KEY"] == "secret"
    machine.end(launch_id, 3, "out of memory")
    await site.round(node, worker)
    (ended,) = site.launcher.list()
    assert (ended.state, ended.exit_status, ended.last_line) == (
        LaunchState.ENDED,
        3,
        "out of memory",
    )
    assert machine.start_count == 1, "the control plane decides when it starts again"
    site.launcher.stop(launch_id, 1.0)
    await site.round(node, worker)
    await worker.ended()
    assert not machine.launches


async def test_an_order_has_the_secrets_that_its_record_has_not(site: Site) -> None:
    node, machine, store = site.node(), FakeMachine(), site.database.store
    replica = store.create(
        Replica(id="rep_1", name="r", parent_id="dep_1", create_time=0, engine_key_salt="5a")
    )
    secrets = {"KEY": engine_key_of(pepper, replica), "PREFIX": prefix_cache_key(pepper).hex()}
    wanted = replace(
        spec("rep_1", node),
        environment={**secrets, "OMP_NUM_THREADS": "4"},
        engine_key_salt=replica.engine_key_salt,
    )
    launch_id = site.launcher.start(wanted)
    (record,) = store.list(NodeLaunch)
    assert record.environment == {"OMP_NUM_THREADS": "4"}
    assert not [each for each in secrets.values() if each.encode() in msgspec.json.encode(record)]
    store.update(msgspec.structs.replace(replica, engine_key_salt="6b"))  # the order keeps its own
    await site.round(node, site.worker(machine))
    given = machine.running(launch_id).spec.environment
    assert {name: given[name] for name in wanted.environment} == wanted.environment


async def test_an_order_that_was_written_with_its_key_still_runs(site: Site) -> None:
    node, machine = site.node(), FakeMachine()
    stored = NodeLaunch(
        id=new_id(NodeLaunch.id_prefix, site.clock),
        name="rep_1",
        parent_id=node.id,
        create_time=0,
        argv=("/engine",),
        environment={"KEY": "k" * 64},
    )
    site.database.store.create(stored)
    await site.round(node, site.worker(machine))
    assert machine.running(stored.id).spec.environment["KEY"] == "k" * 64


async def test_a_new_agent_of_the_same_machine_adopts_what_runs(site: Site) -> None:
    node, machine = site.node(), FakeMachine()
    first = site.worker(machine)
    await site.round(node, first)
    launch_id = site.launcher.start(spec("rep_1", node))
    await site.round(node, first)
    second = site.worker(machine)
    assert second.launches()[0].launch_id == launch_id, "told before it has orders"
    await site.round(node, second)
    assert machine.start_count == 1
    assert machine.running(launch_id)


async def test_nothing_starts_before_what_has_no_order_has_ended(site: Site) -> None:
    node, machine = site.node(), FakeMachine()
    worker = site.worker(machine)
    await site.round(node, worker)
    site.launcher.start(spec("rep_1", node))
    await site.round(node, worker)
    site.launcher.start(spec("rep_1", node))  # of the same replica: the order before is void
    await site.round(node, worker)
    assert machine.start_count == 1
    await worker.ended()
    await site.round(node, worker)
    assert machine.start_count == 2
    assert len(machine.launches) == 1


async def test_an_order_that_cannot_start_is_told_with_the_reason(site: Site) -> None:
    node = site.node()
    worker = site.worker(FakeMachine())
    await site.round(node, worker)
    site.launcher.start(spec("rep_1", node, missing_program))
    await site.round(node, worker)
    await site.round(node, worker)
    (launch,) = site.launcher.list()
    assert launch.state is LaunchState.ENDED
    assert "no such file" in launch.last_line


async def test_a_file_that_is_not_the_versions_is_refused_by_its_name(site: Site) -> None:
    node, directory = site.node(), site.directory / "model"
    directory.mkdir()
    for name in ("config.json", "model.safetensors"):
        (directory / name).write_bytes(name.encode())
    store = site.database.store
    version = ModelVersion(
        id=new_id(ModelVersion.id_prefix, site.clock),
        name="v1",
        create_time=0,
        source=str(directory),
        files=resolve(str(directory), site.directory / "control", SilentProgress()).files,
    )
    version = msgspec.structs.replace(
        version, sha256=digest_of_files((file.name, file.sha256) for file in version.files)
    )
    store.create(version)
    deployment = Deployment(
        id=new_id(Deployment.id_prefix, site.clock),
        name="d",
        create_time=0,
        model_version_id=version.id,
    )
    store.create(deployment)
    replica = Replica(
        id=new_id(Replica.id_prefix, site.clock),
        name="d-1",
        create_time=0,
        parent_id=deployment.id,
        node_id=node.id,
    )
    store.create(replica)
    (directory / "model.safetensors").write_bytes(b"what somebody copied there")

    worker = site.worker(FakeMachine())
    orders = await site.round(node, worker)
    assert orders.models == (
        ModelOrder(source=version.source, sha256=version.sha256, files=version.files),
    )
    while "SHA-256" not in site.book.model(node.id, orders.models[0]).detail:
        await site.round(node, worker)
    assert (
        "the SHA-256 of model.safetensors is" in site.book.model(node.id, orders.models[0]).detail
    )

    (directory / "model.safetensors").write_bytes(b"model.safetensors")
    site.clock.advance(retry_after_s)
    while site.book.model(node.id, orders.models[0]).path is None:
        await site.round(node, worker)
    (model,) = (await site.round(node, worker)).models
    assert model.files == (), "what is there is not named again each second"


async def test_launches_of_a_lost_node_have_ended(site: Site) -> None:
    node = site.node()
    await site.round(node, site.worker(FakeMachine()))
    site.launcher.start(spec("rep_1", node))
    kept = site.database.store.get(Node, node.id)
    site.database.store.update(msgspec.structs.replace(kept, state=NodeState.LOST))
    (launch,) = site.launcher.list()
    assert (launch.state, launch.last_line) == (LaunchState.ENDED, "its node a is lost")


async def test_what_has_no_node_runs_here(site: Site) -> None:
    site.launcher.start(spec("rep_1", None))
    assert site.here.running("rep_1")
    local = site.node("local", secret_hmac=b"")
    site.launcher.start(spec("rep_2", local))
    assert site.here.running("rep_2")


async def test_ports_are_given_out_once(site: Site) -> None:
    node = site.node()
    await site.round(node, site.worker(FakeMachine()))
    places = {site.launcher.place(f"rep_{i}", Resources(node_id=node.id)).port for i in range(2)}
    assert places == {4001, 4002}


async def test_the_inventory_is_kept_as_a_generation(site: Site) -> None:
    node = site.node()
    orders = await site.round(node, site.worker(FakeMachine()))
    await site.round(node, site.worker(FakeMachine()))
    kept = site.database.store.get(Node, node.id)
    assert not orders.inventory_wanted
    assert (kept.generation, kept.inventory) == (2, inventory)


async def test_strangers_and_followers_take_no_reports(site: Site) -> None:
    node = site.node()
    report = msgspec.json.encode(NodeReport(life="x", sequence=1))
    for token in (
        "",
        "hr_x",
        node_tokens.format(node.id, b"t" * 32),
        node_tokens.format("nod_" + "0" * 26, secret),
    ):
        assert (await site.ask(token, report))[0] == 401
    good = node_tokens.format(node.id, secret)
    assert (await site.ask(good, report, "/node/v1/secrets"))[0] == 404
    assert (await site.ask(good, b"{}"))[0] == 400
    wrong = NodeReport(life="x", sequence=1, labels={"a b": "c"})
    assert (await site.ask(good, msgspec.json.encode(wrong)))[0] == 400
    address = NodeReport(life="x", sequence=1, inventory=Inventory(address="evil/path@x"))
    assert (await site.ask(good, msgspec.json.encode(address)))[0] == 400
    site.leads = False
    assert (await site.ask(good, report))[0] == 503


async def test_reports_are_taken_whatever_keeps_the_processes_threads_busy(site: Site) -> None:
    node = site.node()
    loop, gate = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = [asyncio.create_task(asyncio.to_thread(gate.wait)) for _ in range(8)]
    await asyncio.sleep(0)
    try:
        report = msgspec.json.encode(NodeReport(life="x", sequence=1))
        token = node_tokens.format(node.id, secret)
        async with asyncio.timeout(30):
            assert (await site.ask(token, report))[0] == 200
        assert not any(task.done() for task in busy)
    finally:
        gate.set()
        await asyncio.gather(*busy)
    assert site.book.silence_s(node.id, site.clock.monotonic_s()) == 0.0


def test_a_report_that_was_overtaken_changes_nothing() -> None:
    book = NodeBook(0.0)
    book.hear("nod_a", NodeReport(life="x", sequence=5, ports=(1,)), 10.0)
    book.hear("nod_a", NodeReport(life="x", sequence=4, ports=(2,)), 11.0)
    assert book.take_port("nod_a") == 1
    book.hear("nod_a", NodeReport(life="y", sequence=1, ports=(3,)), 12.0)
    assert book.take_port("nod_a") == 3
    assert (book.silence_s("nod_a", 15.0), book.silence_s("nod_b", 15.0)) == (3.0, 15.0)


class FakeNvml(SimpleNamespace):
    """Four devices: two joined by NVLink, and two that are alone."""

    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVMLError = RuntimeError

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        if 3 in (one, other):
            raise RuntimeError("not supported")
        return 0 if {one, other} == {0, 2} else 1

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=80 << 30)

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:0{handle}:00.0")


def test_devices_have_their_type_and_their_island() -> None:
    nvml: Any = FakeNvml()
    assert islands_of(nvml, [0, 1, 2, 3]) == ["nvlink0", "", "nvlink0", ""]
    first = read_accelerators(nvml)[0]
    assert (first.id, first.device_type, first.memory_bytes) == ("GPU-0", "H100", 80 << 30)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA L40S", "L40S"),
        ("Example Chip", "EXAMPLE-CHIP"),
    ],
)
def test_a_device_has_the_name_on_the_box(name: str, kind: str) -> None:
    assert type_of(name) == kind


def test_sockets_share_what_a_container_may_use(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"node{number}").mkdir()
        text = f"Node {number} MemTotal:       1048576 kB\n"
        (tmp_path / f"node{number}" / "meminfo").write_text(text)
    sockets = read_sockets(1 << 30, tmp_path)
    assert [(s.id, s.numa, s.memory_bytes) for s in sockets] == [
        ("cpu0", 0, 1 << 29),
        ("cpu1", 1, 1 << 29),
    ]
    assert [s.memory_bytes for s in read_sockets(4 << 30, tmp_path)] == [2 << 30, 2 << 30]
    assert read_sockets(5, tmp_path / "none")[0].memory_bytes == 5


def test_ports_of_a_range_are_told_in_turn() -> None:
    anywhere = PortFinder("127.0.0.1")()
    assert len(set(anywhere)) == len(anywhere) == 16
    first, last = min(anywhere), min(anywhere) + 19
    finder = PortFinder("127.0.0.1", first, last)
    told = [*finder(), *finder()]
    assert set(told) <= set(range(first, last + 1))
    assert told.count(told[0]) <= 2


async def test_what_a_replica_wrote_is_read_through_its_nodes_reports(site: Site) -> None:
    node, machine = site.node(), FakeMachine()
    worker = site.worker(machine)
    await site.round(node, worker)
    order_id = site.launcher.start(spec("rep_1", node))
    await site.round(node, worker)
    machine.end(order_id, 1, "no such model")

    reading = asyncio.create_task(asyncio.to_thread(site.launcher.log, "rep_1", 1000))
    await until(lambda: bool(site.book.logs_wanted(node.id)))
    await site.round(node, worker)  # whose answer asks for it
    await site.round(node, worker)
    assert await reading == b"no such model\n"
    assert (await site.round(node, worker)).logs_wanted == ()


async def test_a_node_that_does_not_answer_keeps_nobody_waiting(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_launcher, "log_wait_s", 0.0)
    node = site.node()
    await site.round(node, site.worker(FakeMachine()))
    site.launcher.start(spec("rep_1", node))

    with pytest.raises(Unavailable, match="does not answer"):
        await asyncio.to_thread(site.launcher.log, "rep_1", 1000)
    assert site.book.logs_wanted(node.id) == ()
