"""What is special to launches that are processes; the rest is in the contract of launchers."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError, SetupError
from headrace.launchers import lifeline
from headrace.launchers.process import LaunchRecord, ProcessLauncher, read_records
from headrace.launchers.process_identity import birth_of
from headrace.launchers.protocol import LaunchSpec, LaunchState, Resources


class Site:
    """A launcher's directories, and what was started from them."""

    def __init__(self, directory: Path) -> None:
        self.records_dir = directory / "run"
        self.logs_dir = directory / "logs"
        self.launchers: list[ProcessLauncher] = []

    def open(self, descriptor: int | None = None) -> ProcessLauncher:
        self.launchers.append(
            ProcessLauncher(self.records_dir, self.logs_dir, descriptor, SystemClock())
        )
        return self.launchers[-1]

    def log(self, name: str) -> str:
        return (self.logs_dir / f"{name}.log").read_text()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for launcher in made.launchers:
        for launch in launcher.list():
            launcher.stop(launch.launch_id, 0.0)


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():  # the test's own timeout bounds it
        pause.wait(0.01)


def shell(name: str, script: str, **environment: str) -> LaunchSpec:
    return LaunchSpec(name, ("/bin/sh", "-c", script), environment)


def is_ended(launcher: ProcessLauncher) -> bool:
    return all(launch.state is LaunchState.ENDED for launch in launcher.list())


def test_output_and_errors_go_to_the_log(site: Site) -> None:
    launcher = site.open()
    launcher.start(shell("a", 'echo "$WORD"; echo problem >&2', WORD="hello"))
    wait_until(lambda: is_ended(launcher))

    assert site.log("a") == "hello\nproblem\n"


def test_a_process_is_asked_to_end_before_it_is_killed(site: Site) -> None:
    launcher = site.open()
    launch_id = launcher.start(
        shell("a", "trap 'echo asked; exit 0' TERM; echo on; sleep 60 & wait")
    )
    wait_until(lambda: site.log("a") == "on\n")
    launcher.stop(launch_id, 30.0)

    assert site.log("a") == "on\nasked\n"


def test_a_process_that_refuses_to_end_is_killed_with_all_it_started(site: Site) -> None:
    launcher = site.open()
    launch_id = launcher.start(shell("a", "trap '' TERM; sleep 60 & echo $!; wait; sleep 60"))
    wait_until(lambda: site.log("a").endswith("\n"))
    child = int(site.log("a"))
    launcher.stop(launch_id, 0.1)

    wait_until(lambda: birth_of(child) is None)
    assert launcher.list() == []


def test_what_an_ended_process_leaves_behind_is_ended(site: Site) -> None:
    launcher = site.open()
    launcher.start(shell("a", "sleep 60 & echo $!; exit 7"))
    wait_until(lambda: is_ended(launcher))
    child = int(site.log("a"))

    wait_until(lambda: birth_of(child) is None)
    assert launcher.list()[0].exit_status == 7


def test_what_an_adopted_process_leaves_behind_is_ended(site: Site) -> None:
    site.open().start(shell("a", 'sleep 60 & echo $!; read line < "$GATE"', GATE=fifo(site)))
    wait_until(lambda: site.log("a").endswith("\n"))
    adopter = site.open()
    (site.logs_dir / "gate").write_text("\n")
    wait_until(lambda: is_ended(adopter))
    child = int(site.log("a"))

    wait_until(lambda: birth_of(child) is None)
    assert adopter.list()[0].exit_status is None  # its parent, not we, learned it


def fifo(site: Site) -> str:
    path = site.logs_dir / "gate"
    os.mkfifo(path)
    return str(path)


def test_a_later_process_with_the_same_number_is_not_taken_for_a_launch(site: Site) -> None:
    site.open()
    record = LaunchRecord(
        launch_id="lau_1", name="a", pid=os.getpid(), birth="of another process", log_start_bytes=0
    )
    (site.records_dir / "lau_1.json").write_bytes(msgspec.json.encode(record))
    launcher = site.open()

    assert [launch.state for launch in launcher.list()] == [LaunchState.ENDED]
    launcher.stop("lau_1", 0.0)  # and this process lives
    assert launcher.list() == []
    assert read_records(site.records_dir) == []


def test_a_process_whose_starter_was_killed_before_its_record_was_whole_is_found(
    site: Site,
) -> None:
    site.open().start(shell("a", "sleep 60"))
    (record,) = read_records(site.records_dir)
    unfinished = msgspec.structs.replace(record, pid=0, birth="")
    path = site.records_dir / f"{record.launch_id}.json"
    path.write_bytes(msgspec.json.encode(unfinished))
    launcher = site.open()

    assert [launch.state for launch in launcher.list()] == [LaunchState.RUNNING]
    launcher.stop(record.launch_id, 5.0)
    assert birth_of(record.pid) is None


def test_a_start_that_never_came_about_has_ended(site: Site) -> None:
    site.open()
    record = LaunchRecord(launch_id="lau_1", name="a", log_start_bytes=0)
    (site.records_dir / "lau_1.json").write_bytes(msgspec.json.encode(record))
    launcher = site.open()

    assert [launch.state for launch in launcher.list()] == [LaunchState.ENDED]
    launcher.start(shell("a", "sleep 60"))
    assert [each.launch_id for each in read_records(site.records_dir)] != ["lau_1"]


def test_a_record_that_is_none_is_left_alone(site: Site) -> None:
    site.open()
    (site.records_dir / "lau_1.json").write_text("not a record")

    assert site.open().list() == []


def test_a_launch_leads_a_session_of_its_own(site: Site) -> None:
    launcher = site.open()
    launcher.start(shell("a", "sleep 60"))
    (record,) = read_records(site.records_dir)

    assert os.getsid(record.pid) == os.getpgid(record.pid) == record.pid


def test_only_the_lifeline_is_inherited(site: Site) -> None:
    line = lifeline.create()
    words = (
        "import os; print(os.environ['HEADRACE_LIFELINE_FD'], *sorted(os.listdir('/proc/self/fd')))"
    )
    with open(os.devnull) as stranger:  # noqa: PTH123 -- a descriptor that is open here
        os.set_inheritable(stranger.fileno(), True)
        launcher = site.open(line.descriptor)
        launcher.start(LaunchSpec("a", (sys.executable, "-S", "-c", words)))
        wait_until(lambda: is_ended(launcher))
    line.close()

    named, *open_ones = site.log("a").split()
    assert int(named) == line.descriptor
    assert named in open_ones
    assert len(open_ones) == 5  # three standard ones, the lifeline, and the listing itself


def test_without_a_lifeline_none_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lifeline.variable, "99")
    launcher = site.open(None)
    launcher.start(shell("a", 'echo "<$HEADRACE_LIFELINE_FD>"'))
    wait_until(lambda: is_ended(launcher))

    assert site.log("a") == "<>\n"


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigurationError, match="cannot make the directory"):
        ProcessLauncher(tmp_path / "file" / "run", tmp_path / "logs", None, SystemClock())


def test_a_launch_that_cannot_be_written_down_is_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = site.open()
    site.records_dir.rmdir()

    with pytest.raises(SetupError, match="cannot start a"):
        launcher.start(shell("a", "echo $$; sleep 60"))
    assert launcher.list() == []


def test_a_process_sees_its_own_accelerators_alone(site: Site) -> None:
    launcher = site.open()
    script = ("/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES.")
    own = Resources(device_ids=("GPU-1", "GPU-2", "cpu0"))
    launcher.start(LaunchSpec("own", script, resources=own))
    launcher.start(LaunchSpec("none", script, resources=Resources(device_ids=("cpu0",))))
    wait_until(lambda: is_ended(launcher))
    assert site.log("own").strip() == "GPU-1,GPU-2."
    assert site.log("none").strip() == f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')}."


def test_a_launch_over_several_nodes_is_refused(site: Site) -> None:
    with pytest.raises(SetupError, match="--launcher kubernetes or --launcher ray"):
        site.open().place("wide", Resources(node_count=2))
