"""Machines that join: replicas run there, move, are adopted, drained.

Each has a network of its own where this process may make one, and is reached over a cable that can
be cut; elsewhere they are processes beside the platform, and what needs a cable is skipped.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import openai
import pytest

from headrace.cli.admin_client import AdminAddress, AdminClient
from headrace.cli.nodes import NodeList
from headrace.sim.child_process import wait_until
from headrace.sim.network import MachineNetwork, Network, hub_address, why_not
from headrace.sim.platform_process import PlatformProcess
from headrace.spec.deployments import Replica, ReplicaState
from headrace.spec.nodes import Node
from headrace.spec.prefix_key import prefix_cache_key
from headrace.storage import open_sqlite

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
reports_address = f"{hub_address}:8082"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli.main", *words]


@dataclass
class Machine:
    """An agent with a directory of its own, and what runs below it."""

    name: str
    directory: Path
    network: MachineNetwork | None
    process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str, token: str = "") -> None:
        log = (self.directory.parent / f"{self.name}.log").open("ab")
        within: Sequence[str] = () if self.network is None else self.network.command
        join = command("node", "join", *words, "--node-dir", str(self.directory))
        self.process = subprocess.Popen(
            [*within, *join, *(() if self.network is None else ("--plaintext",))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **({"HEADRACE_NODE_TOKEN": token} if token else {})},
        )
        log.close()

    def kill(self) -> None:
        """As a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=30)

    def stop(self) -> None:
        """As a person does: its replicas end too."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=60)

    def replica_pids(self) -> list[int]:
        records = (self.directory / "replicas").glob("*.json")
        return [json.loads(path.read_bytes())["pid"] for path in records]


@dataclass
class Fleet:
    """A platform and its machines."""

    platform: PlatformProcess
    network: Network | None
    machines: dict[str, Machine] = field(default_factory=dict)

    def ask(self, *words: str) -> dict[str, object]:
        answer = subprocess.run(
            [*command(*words), "--json", "--data-dir", str(self.platform.data_dir)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert answer.returncode == 0, answer.stderr
        found: dict[str, object] = json.loads(answer.stdout)
        return found

    def nodes(self) -> NodeList:
        """What the control plane says of nodes; by its API, as a command takes a second."""
        address = AdminAddress(self.platform.admin_url, self.platform.admin_token)
        return msgspec.json.decode(AdminClient(address).get("/nodes"), type=NodeList)

    def join(self, name: str) -> Machine:
        token = str(self.ask("nodes", "add", name, "--region", f"region-{name}")["token"])
        cable = None if self.network is None else self.network.add(name)
        machine = self.machines[name] = Machine(name, self.platform.directory / name, cable)
        url = self.platform.admin_url if cable is None else f"http://{reports_address}"
        machine.start(url, token=token)
        return machine

    def cable(self, name: str) -> MachineNetwork:
        """A machine's cable; the test is skipped where there is none."""
        cable = self.machines[name].network
        if cable is None:
            pytest.skip(why_not() or "")
        return cable

    def serving(self) -> dict[str, list[Replica]]:
        """Replicas that serve, by the name of their node."""
        database = open_sqlite(self.platform.data_dir / "headrace.db")
        try:
            names = {node.id: node.name for node in database.store.list(Node)}
            found: dict[str, list[Replica]] = {}
            for replica in database.store.list(Replica):
                if replica.state is ReplicaState.ACTIVE:
                    found.setdefault(names.get(replica.node_id, ""), []).append(replica)
            return found
        finally:
            database.close()

    def wait_serving(self, **counts: int) -> None:
        wait_until(lambda: {name: len(found) for name, found in self.serving().items()} == counts)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("nodes")
    options = ["--demo", "--node-lost-after", "8"]
    network: Network | None = None
    with ExitStack() as stack:
        if why_not() is None:
            network = stack.enter_context(Network())
            stack.enter_context(network.entered())
            options += ["--node-listen", reports_address, "--node-plaintext"]
        platform = stack.enter_context(PlatformProcess.start(directory, *options))
        fleet = Fleet(platform, network)
        try:
            fleet.join("a")
            fleet.join("b")
            wait_until(lambda: states(fleet) == ["ready"] * 3)
            fleet.ask("deployments", "scale", model, "3")
            fleet.wait_serving(local=1, a=1, b=1)
            yield fleet
        finally:
            for machine in fleet.machines.values():
                if machine.process is None or machine.process.poll() is not None:
                    machine.start()  # so that it ends what the killed one left
                machine.stop()


def states(fleet: Fleet) -> list[str]:
    return [node.state for node in fleet.nodes().items]


class Load:
    """Requests one after the other until told to stop."""

    def __init__(self, platform: PlatformProcess) -> None:
        self._client = openai.OpenAI(
            base_url=f"{platform.gateway_url}/v1", api_key=platform.api_key, max_retries=0
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered = 0
        self.failures: list[str] = []

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._client.completions.create(model=model, prompt="Hi", max_tokens=4)
                self.answered += 1
            except openai.OpenAIError as error:
                self.failures.append(str(error))

    def wait_answered(self, count: int) -> None:
        """Wait until so many were answered."""
        wait_until(lambda: self.answered >= count or self.failures != [])

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=60)


def test_replicas_have_the_region_of_their_node_and_placement_is_explained(fleet: Fleet) -> None:
    regions = {name: found[0].region for name, found in fleet.serving().items()}
    assert regions == {"local": "", "a": "region-a", "b": "region-b"}
    explained = fleet.ask("explain", "placement", model)
    nodes, replicas = explained["nodes"], explained["replicas"]
    assert isinstance(nodes, list)
    assert isinstance(replicas, list)
    assert {verdict["node"]: verdict["reason"] for verdict in nodes} == dict.fromkeys(
        ("local", "a", "b"), ""
    )
    assert sorted(place["node"] for place in replicas) == ["a", "b", "local"]


def test_no_key_of_a_machines_engine_is_in_the_database(fleet: Fleet) -> None:
    platform = fleet.platform
    stored = platform.stored_bytes()
    for replica in platform.replicas():
        assert replica.engine_key_salt.encode() in stored
        assert platform.engine_key(replica).encode() not in stored
    assert prefix_cache_key(platform.pepper()).hex().encode() not in stored


def test_agents_that_vanish_together_move_nothing_and_new_ones_adopt_what_runs(
    fleet: Fleet,
) -> None:
    machines = [fleet.machines[name] for name in ("a", "b")]
    before = [machine.replica_pids() for machine in machines]
    with Load(fleet.platform) as load:
        for machine in machines:
            machine.kill()
        wait_until(lambda: frozen(fleet))
        for machine in machines:
            machine.start()
        wait_until(lambda: not frozen(fleet))
    assert load.failures == []
    assert [machine.replica_pids() for machine in machines] == before
    assert {name: len(found) for name, found in fleet.serving().items()} == {
        "local": 1,
        "a": 1,
        "b": 1,
    }


def frozen(fleet: Fleet) -> bool:
    """Whether so many nodes are silent that nothing is moved."""
    return fleet.nodes().frozen_reason is not None


def whole_without(fleet: Fleet, name: str) -> bool:
    """Whether all three serve, and none of them on that node."""
    serving = fleet.serving()
    return name not in serving and sum(map(len, serving.values())) == 3


def starts(fleet: Fleet) -> dict[str, list[tuple[str, int]]]:
    """The replicas that serve with how often each was started, by the name of their node."""
    return {
        name: [(replica.id, replica.attempts) for replica in found]
        for name, found in fleet.serving().items()
    }


def test_cut_cables_freeze_the_fleet_and_no_request_fails(fleet: Fleet) -> None:
    cables = [fleet.cable(name) for name in ("a", "b")]
    before = starts(fleet)
    with Load(fleet.platform) as load:
        load.wait_answered(3)  # so that the gateway has connections to all three
        for cable in cables:
            cable.cut()
        wait_until(lambda: frozen(fleet))
        answered = load.answered
        load.wait_answered(answered + 10)
        assert starts(fleet) == before
        for cable in cables:
            cable.mend()
        wait_until(lambda: not frozen(fleet))
    assert load.failures == []
    assert starts(fleet) == before


def test_what_ran_behind_a_cut_cable_starts_elsewhere_and_the_machine_comes_back_empty(
    fleet: Fleet,
) -> None:
    cable, machine = fleet.cable("b"), fleet.machines["b"]
    assert "b" in fleet.serving()
    with Load(fleet.platform) as load:
        cable.cut()
        wait_until(lambda: "lost" in states(fleet))
        wait_until(lambda: whole_without(fleet, "b"))
        assert machine.replica_pids() != []  # it knows nothing of what was decided
        cable.mend()
        wait_until(lambda: states(fleet) == ["ready"] * 3)
        wait_until(lambda: machine.replica_pids() == [])
    assert load.failures == []


def test_a_drain_moves_replicas_and_fails_nobody(fleet: Fleet) -> None:
    with Load(fleet.platform) as load:
        fleet.ask("nodes", "drain", "a")
        wait_until(lambda: whole_without(fleet, "a"))
        fleet.ask("nodes", "uncordon", "a")
    assert load.failures == []
    assert load.answered > 0


def test_what_ran_on_a_machine_that_is_gone_starts_elsewhere(fleet: Fleet) -> None:
    machine = fleet.machines["b"]
    assert machine.replica_pids() != []
    with Load(fleet.platform) as load:
        machine.kill()
        for pid in machine.replica_pids():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "lost" in states(fleet))
        wait_until(lambda: whole_without(fleet, "b"))
    assert load.failures == []
