"""What every launcher promises, whatever it runs its launches on.

A launcher joins by a bench: how to make one, make it anew on the same machine, and have a launch
end by itself.
"""

import contextlib
import dataclasses
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError, Conflict, SetupError
from headrace.launchers.kubernetes.launcher import KubernetesLauncher, KubernetesSite
from headrace.launchers.process import ProcessLauncher
from headrace.launchers.protocol import Launch, Launcher, LaunchSpec, LaunchState, Place, Resources
from headrace.sim.kubernetes_cluster import FakeCluster
from headrace.sim.kubernetes_server import KubernetesServer
from headrace.sim.launcher import FakeLauncher, FakeMachine, missing_program


class Bench(Protocol):
    """One kind of launcher on one machine."""

    opened: list[Launcher]
    place_count: int  # how many launches there is room for at once, up to 32
    runs_programs: bool  # whether launches are processes that this test sees
    finds_programs: bool  # whether a start fails at once where there is no such program

    def open(self) -> Launcher: ...

    def lasting(self, name: str) -> LaunchSpec: ...

    def end(self, launcher: Launcher, name: str, status: int, last_line: str) -> None:
        """Start a launch that ends by itself at once, and wait until it has."""
        ...


class FakeBench:
    runs_programs = False
    finds_programs = True
    place_count = 32

    def __init__(self) -> None:
        self.opened: list[Launcher] = []
        self._machine = FakeMachine()

    def open(self) -> Launcher:
        self.opened.append(FakeLauncher(self._machine))
        return self.opened[-1]

    def lasting(self, name: str) -> LaunchSpec:
        return LaunchSpec(name, ("run",))

    def end(self, launcher: Launcher, name: str, status: int, last_line: str) -> None:
        launcher.start(self.lasting(name))
        self._machine.end(name, status, last_line)


class ProcessBench:
    runs_programs = True
    finds_programs = True
    place_count = 32

    def __init__(self, directory: Path) -> None:
        self.opened: list[Launcher] = []
        self._directory = directory

    def open(self) -> Launcher:
        self.opened.append(
            ProcessLauncher(self._directory / "run", self._directory / "logs", None, SystemClock())
        )
        return self.opened[-1]

    def lasting(self, name: str) -> LaunchSpec:
        return LaunchSpec(name, ("/bin/sh", "-c", "sleep 60"))

    def end(self, launcher: Launcher, name: str, status: int, last_line: str) -> None:
        words = f"import sys; print({last_line!r}); print(); sys.exit({status})"
        launcher.start(LaunchSpec(name, (sys.executable, "-S", "-c", words)))
        wait_until(lambda: find(launcher, name).state is LaunchState.ENDED)


class KubernetesBench:
    runs_programs = False
    place_count = 32
    finds_programs = False  # the node does, when the image is there

    def __init__(self, server: KubernetesServer) -> None:
        self.opened: list[Launcher] = []
        self._server = server

    def open(self) -> Launcher:
        site = KubernetesSite("inference", "headrace:1", server=self._server.url)
        self.opened.append(KubernetesLauncher(site, SystemClock(), look_interval_s=0.01))
        return self.opened[-1]

    def lasting(self, name: str) -> LaunchSpec:
        return LaunchSpec(name, ("run",))

    def end(self, launcher: Launcher, name: str, status: int, last_line: str) -> None:
        launcher.start(self.lasting(name))
        ended = {"terminated": {"reason": "Error", "exitCode": status}}

        def be_the_kubelet(cluster: FakeCluster) -> None:
            (pod,) = cluster.pods()
            cluster.logs[pod["metadata"]["name"], False] = f"{last_line}\n\n"
            statuses = {"containerStatuses": [{"name": "engine", "state": ended}]}
            path = "/api/v1/namespaces/inference/pods"
            cluster.set_status(path, pod["metadata"]["name"], statuses)

        self._server.change(be_the_kubelet)
        wait_until(lambda: find(launcher, name).state is LaunchState.ENDED)


class RayBench:
    runs_programs = True
    finds_programs = True
    place_count = 2

    def __init__(self, address: str) -> None:
        self.opened: list[Launcher] = []
        self._address = address

    def open(self) -> Launcher:
        from headrace.launchers.ray_launcher import RayLauncher  # noqa: PLC0415 -- an extra

        self.opened.append(RayLauncher(self._address, SystemClock()))
        return self.opened[-1]

    def lasting(self, name: str) -> LaunchSpec:
        return LaunchSpec(name, ("/bin/sh", "-c", "sleep 60"), watches_lifeline=False)

    def end(self, launcher: Launcher, name: str, status: int, last_line: str) -> None:
        words = f"import sys; print({last_line!r}); print(); sys.exit({status})"
        launcher.start(LaunchSpec(name, (sys.executable, "-S", "-c", words)))
        wait_until(lambda: find(launcher, name).state is LaunchState.ENDED)


@pytest.fixture(scope="module")
def ray_site() -> Iterator[Any]:
    """A Ray cluster of one node, to which tests add others."""
    if importlib.util.find_spec("ray") is None:  # loading it would fix its settings
        pytest.skip("Ray is not installed: pip install 'headrace[ray]'")
    from headrace.sim.ray_cluster import ray_cluster  # noqa: PLC0415 -- an extra

    with ray_cluster() as made:
        yield made


on_ray = (pytest.mark.e2e, pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(params=["fake", "process", "kubernetes", pytest.param("ray", marks=on_ray)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with contextlib.ExitStack() as servers:
        made: Bench
        match request.param:
            case "fake":
                made = FakeBench()
            case "process":
                made = ProcessBench(tmp_path)
            case "kubernetes":
                made = KubernetesBench(servers.enter_context(KubernetesServer()))
            case _:
                made = RayBench(request.getfixturevalue("ray_site").address)
        yield made
        for launcher in made.opened:
            for launch in launcher.list():
                launcher.stop(launch.launch_id, 0.0)
            launcher.close()


canary = "hr-canary-of-an-upstream"


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():  # the test's own timeout bounds it
        pause.wait(0.01)


def find(launcher: Launcher, name: str) -> Launch:
    (launch,) = [known for known in launcher.list() if known.name == name]
    return launch


def test_what_was_started_runs_until_it_is_stopped(bench: Bench) -> None:
    launcher = bench.open()
    launch_id = launcher.start(bench.lasting("a"))

    assert launcher.list() == [Launch(launch_id, "a", LaunchState.RUNNING)]
    launcher.stop(launch_id, 5.0)
    assert launcher.list() == []


def test_a_name_runs_once_at_a_time(bench: Bench) -> None:
    launcher = bench.open()
    launch_id = launcher.start(bench.lasting("a"))

    with pytest.raises(Conflict):
        launcher.start(bench.lasting("a"))
    assert [launch.launch_id for launch in launcher.list()] == [launch_id]


def test_launches_of_different_names_are_apart(bench: Bench) -> None:
    launcher = bench.open()
    first = launcher.start(bench.lasting("a"))
    second = launcher.start(bench.lasting("b"))
    launcher.stop(first, 5.0)

    assert [launch.launch_id for launch in launcher.list()] == [second]


def test_an_ended_launch_tells_its_status_and_last_words(bench: Bench) -> None:
    launcher = bench.open()
    bench.end(launcher, "a", 3, "no such model")

    launch = find(launcher, "a")
    assert (launch.state, launch.exit_status, launch.last_line) == (
        LaunchState.ENDED,
        3,
        "no such model",
    )


def test_the_newest_output_can_be_read_and_is_cut_at_a_line(bench: Bench) -> None:
    launcher = bench.open()
    assert launcher.log("a", 1000) == b""
    bench.end(launcher, "a", 3, "no such model")

    assert b"no such model" in launcher.log("a", 1000)
    assert len(launcher.log("a", 5)) <= 5
    with pytest.raises(ConfigurationError):
        launcher.log("../a", 1000)


def test_an_ended_launch_is_replaced_by_the_next_of_its_name(bench: Bench) -> None:
    launcher = bench.open()
    bench.end(launcher, "a", 1, "words of the first")
    launch_id = launcher.start(bench.lasting("a"))

    assert launcher.list() == [Launch(launch_id, "a", LaunchState.RUNNING)]


def test_an_ended_launch_is_forgotten_by_a_stop(bench: Bench) -> None:
    launcher = bench.open()
    bench.end(launcher, "a", 0, "")
    launcher.stop(find(launcher, "a").launch_id, 5.0)

    assert launcher.list() == []


def test_a_stop_may_be_repeated(bench: Bench) -> None:
    launcher = bench.open()
    launch_id = launcher.start(bench.lasting("a"))
    launcher.stop(launch_id, 5.0)
    launcher.stop(launch_id, 5.0)
    launcher.stop("never started", 5.0)

    assert launcher.list() == []


def test_a_new_launcher_finds_and_stops_what_the_last_one_started(bench: Bench) -> None:
    launch_id = bench.open().start(bench.lasting("a"))
    launcher = bench.open()

    assert launcher.list() == [Launch(launch_id, "a", LaunchState.RUNNING)]
    with pytest.raises(Conflict):
        launcher.start(bench.lasting("a"))
    launcher.stop(launch_id, 5.0)
    assert launcher.list() == []
    assert bench.open().list() == []


def test_a_program_that_is_not_there_is_a_clear_error_and_no_launch(bench: Bench) -> None:
    if not bench.finds_programs:
        pytest.skip("this launcher learns later that a program is missing")
    launcher = bench.open()

    with pytest.raises(SetupError, match="cannot start a"):
        launcher.start(LaunchSpec("a", (missing_program,)))
    assert launcher.list() == []
    launcher.start(bench.lasting("a"))  # the name is free


def test_an_engine_gets_its_own_variables_and_no_keys_of_the_platform(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bench.runs_programs:
        pytest.skip("this launcher's launches are containers or make-believe: they inherit nothing")
    monkeypatch.setenv("OPENAI_API_KEY", canary)
    monkeypatch.setenv("SOME_VARIABLE_OF_THE_PLATFORM", canary)
    launcher = bench.open()
    words = (
        "import os; e = os.environ; names = [n for n in e if 'TOKEN' in n or 'KEY' in n];"
        f"print(sorted(names), {canary!r} in e.values(), e['OWN'], bool(e['PATH']))"
    )
    own = {"OWN": "said", "HEADRACE_API_KEY": "its own"}
    launcher.start(LaunchSpec("a", (sys.executable, "-S", "-c", words), own))
    wait_until(lambda: find(launcher, "a").state is LaunchState.ENDED)

    assert find(launcher, "a").last_line == "['HEADRACE_API_KEY'] False said True"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 200])
def test_a_name_that_could_leave_its_directory_is_refused(bench: Bench, name: str) -> None:
    launcher = bench.open()

    with pytest.raises(ConfigurationError):
        launcher.start(LaunchSpec(name, bench.lasting("a").argv))
    assert launcher.list() == []


def test_places_of_different_launches_differ(bench: Bench) -> None:
    launcher = bench.open()
    places = [launcher.place(f"a{number}") for number in range(bench.place_count)]

    assert len({place.address for place in places}) == len(places)
    for place in places:
        assert place.address.endswith(f":{place.port}")
        assert place.listen_host
        assert 1024 <= place.port <= 65_535


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_launch_on_ray_ends_with_its_node_and_starts_on_another(ray_site: Any) -> None:
    from headrace.launchers.ray_launcher import RayLauncher  # noqa: PLC0415 -- an extra
    from headrace.sim.ray_cluster import add_node, worker_label  # noqa: PLC0415 -- an extra

    launcher = RayLauncher(ray_site.address, SystemClock())
    node = add_node(ray_site)
    command = ("/bin/sh", "-c", "sleep 60")
    there = Resources(cpu_count=1, node_labels=worker_label)
    launcher.start(LaunchSpec("a", command, watches_lifeline=False, resources=there))
    ray_site.remove_node(node)
    wait_until(lambda: launcher.list() == [])

    launcher.place("a")
    launch_id = launcher.start(LaunchSpec("a", command, watches_lifeline=False))
    assert launcher.list() == [Launch(launch_id, "a", LaunchState.RUNNING)]
    launcher.stop(launch_id, 1.0)
    assert launcher.list() == []


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.timeout(300)
def test_a_launch_that_ray_has_no_room_for_keeps_nobody_waiting_and_gets_the_room_that_comes(
    ray_site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.launchers import ray_launcher  # noqa: PLC0415 -- an extra
    from headrace.sim.ray_cluster import add_node  # noqa: PLC0415 -- an extra

    launcher = ray_launcher.RayLauncher(ray_site.address, SystemClock())
    large = Resources(cpu_count=50)
    monkeypatch.setattr(ray_launcher, "place_timeout_s", 0.2)
    with pytest.raises(SetupError, match="no node of the Ray cluster has room for large"):
        launcher.place("large", large)

    monkeypatch.setattr(ray_launcher, "place_timeout_s", 240.0)
    placed: list[Place] = []
    waiting = threading.Thread(target=lambda: placed.append(launcher.place("large", large)))
    waiting.start()
    command = ("/bin/sh", "-c", "sleep 600")
    launch_id = launcher.start(LaunchSpec("small", command, watches_lifeline=False))
    assert launcher.list() == [Launch(launch_id, "small", LaunchState.RUNNING)]
    launcher.stop(launch_id, 1.0)
    assert waiting.is_alive()

    node = add_node(ray_site, cpu_count=50)
    waiting.join()
    (place,) = placed
    assert place.port
    large_id = launcher.start(LaunchSpec("large", command, watches_lifeline=False, resources=large))
    assert launcher.list() == [Launch(large_id, "large", LaunchState.RUNNING)]
    launcher.stop(large_id, 1.0)
    ray_site.remove_node(node)


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.timeout(300)
def test_a_launch_on_ray_gets_a_device_of_a_type_that_it_asks_for(
    ray_site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.launchers import ray_launcher  # noqa: PLC0415 -- an extra
    from headrace.sim.ray_cluster import add_node  # noqa: PLC0415 -- an extra

    launcher = ray_launcher.RayLauncher(ray_site.address, SystemClock())
    nodes = {kind: add_node(ray_site, device_type=kind) for kind in ("L4", "H100")}
    monkeypatch.setattr(ray_launcher, "place_timeout_s", 240.0)
    wanted = Resources(cpu_count=1, device_count=1, device_types=("H200", "H100"))
    for name in ("one", "two"):
        launcher.place(name, wanted)
        group = ray_site_group(name)
        assert set(group["bundles_to_node_id"].values()) == {nodes["H100"].node_id}
        assert group["strategy"] == "STRICT_PACK"
        says = ("/bin/sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES; sleep 600")
        launcher.start(LaunchSpec(name, says, watches_lifeline=False, resources=wanted))
    wait_until(lambda: all(b"sees " in launcher.log(name, 4096) for name in ("one", "two")))
    assert {launcher.log(name, 4096).split()[1] for name in ("one", "two")} == {b"0", b"1"}

    monkeypatch.setattr(ray_launcher, "place_timeout_s", 0.2)
    with pytest.raises(SetupError, match="GPU 1, of type H200 or H100"):
        launcher.place("three", wanted)  # both are in use, and of L4 it has not asked
    for launch in launcher.list():
        launcher.stop(launch.launch_id, 1.0)
    for node in nodes.values():
        ray_site.remove_node(node)


def ray_site_group(name: str) -> Any:
    """What Ray says of the room of a launch."""
    import ray  # noqa: PLC0415 -- an extra

    from headrace.launchers.ray_launcher import group_prefix  # noqa: PLC0415 -- an extra

    groups = ray.util.placement_group_table().values()
    (group,) = (
        each
        for each in groups
        if each["name"] == group_prefix + name and each["state"] == "CREATED"
    )
    return group


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.timeout(300)
def test_a_launch_on_ray_spans_nodes_that_live_and_die_together(ray_site: Any) -> None:
    from headrace.launchers.ray_launcher import RayLauncher  # noqa: PLC0415 -- an extra
    from headrace.sim.ray_cluster import add_node  # noqa: PLC0415 -- an extra

    launcher = RayLauncher(ray_site.address, SystemClock())
    node = add_node(ray_site)
    wide = Resources(cpu_count=1, node_count=2)
    place = launcher.place("wide", wide)
    assert place.group_port not in (0, place.port)

    says = "echo I am $(LWS_WORKER_INDEX) of $LWS_GROUP_SIZE at $(LWS_LEADER_ADDRESS); sleep 600"
    spec = LaunchSpec(
        "wide",
        ("/bin/sh", "-c", says),
        watches_lifeline=False,
        resources=wide,
        worker_argv=("/bin/sh", "-c", f"echo helping; {says}"),
    )
    launch_id = launcher.start(spec)
    assert launcher.list() == [Launch(launch_id, "wide", LaunchState.RUNNING)]
    host = place.listen_host

    def log() -> list[str]:
        return launcher.log("wide", 4096).decode().split("\n")

    wait_until(lambda: f"I am 0 of 2 at {host}" in log())
    wait_until(lambda: f"I am 1 of 2 at {host}" in log())
    assert log().count("helping") == 1

    ray_site.remove_node(node)
    wait_until(lambda: not is_running(launcher, "wide"))
    for launch in launcher.list():  # Ray may have ended it whole
        assert launch.last_line == "node 1 of it is lost"
        launcher.stop(launch.launch_id, 1.0)
    wait_until(lambda: launcher.list() == [])

    node = add_node(ray_site)
    ending = dataclasses.replace(spec, worker_argv=("/bin/sh", "-c", "echo no; exit 3"))
    launcher.place("wide", wide)
    launch_id = launcher.start(ending)
    wait_until(lambda: find(launcher, "wide").state is LaunchState.ENDED)
    assert find(launcher, "wide") == Launch(launch_id, "wide", LaunchState.ENDED, 3, "node 1: no")
    launcher.stop(launch_id, 1.0)
    assert launcher.list() == []
    ray_site.remove_node(node)


def is_running(launcher: Launcher, name: str) -> bool:
    return any(
        known.name == name and known.state is LaunchState.RUNNING for known in launcher.list()
    )
