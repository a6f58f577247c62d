"""A launcher without processes: launches live until a test ends them.

The machine is apart from the launcher, so that a second launcher on it stands for a restart of the
control plane. It passes the same contract suite as the real one.
"""

import builtins
from dataclasses import dataclass, field

from headrace.base.errors import Conflict, SetupError
from headrace.launchers.protocol import (
    Launch,
    LaunchSpec,
    LaunchState,
    Place,
    Resources,
    checked_name,
    no_resources,
)

first_port = 20_000
missing_program = "/missing"  # the one program that cannot be run


@dataclass(slots=True)
class FakeLaunch:
    """One start on a fake machine."""

    launch_id: str
    spec: LaunchSpec
    ended: bool = False
    exit_status: int | None = None
    last_line: str = ""
    output: bytes = b""


@dataclass(slots=True)
class FakeMachine:
    """What runs, whoever started it."""

    launches: dict[str, FakeLaunch] = field(default_factory=dict)
    start_count: int = 0
    port_count: int = 0

    def running(self, name: str) -> FakeLaunch:
        """The launch of that name that runs; KeyError if there is none."""
        for launch in self.launches.values():
            if launch.spec.name == name and not launch.ended:
                return launch
        raise KeyError(name)

    def end(self, name: str, exit_status: int, last_line: str = "") -> None:
        """Have a running launch end by itself."""
        launch = self.running(name)
        launch.ended, launch.exit_status, launch.last_line = True, exit_status, last_line
        launch.output = last_line.encode() + b"\n"


class FakeLauncher:
    """A launcher on a fake machine."""

    def __init__(self, machine: FakeMachine | None = None) -> None:
        self.machine = machine or FakeMachine()

    def place(self, name: str, resources: Resources = no_resources) -> Place:
        """A port that was never given out."""
        self.machine.port_count += 1
        port = first_port + self.machine.port_count
        return Place("127.0.0.1", port, f"http://127.0.0.1:{port}")

    def start(self, spec: LaunchSpec) -> str:
        """Note a start."""
        checked_name(spec.name)
        machine = self.machine
        for launch in [
            known for known in machine.launches.values() if known.spec.name == spec.name
        ]:
            if not launch.ended:
                raise Conflict(f"a launch named {spec.name} runs already; stop it first")
            del machine.launches[launch.launch_id]
        if spec.argv[0] == missing_program:
            raise SetupError(f"cannot start {spec.name} (no such file: {spec.argv[0]})")
        machine.start_count += 1
        launch_id = f"lau_{machine.start_count:026d}"
        machine.launches[launch_id] = FakeLaunch(launch_id, spec)
        return launch_id

    def list(self) -> builtins.list[Launch]:
        """What was started and not forgotten."""
        return [
            Launch(
                known.launch_id,
                known.spec.name,
                LaunchState.ENDED if known.ended else LaunchState.RUNNING,
                known.exit_status,
                known.last_line,
            )
            for known in self.machine.launches.values()
        ]

    def stop(self, launch_id: str, grace_s: float) -> None:
        """Forget it."""
        self.machine.launches.pop(launch_id, None)

    def log(self, name: str, bytes_max: int) -> bytes:
        """What a test said that it wrote."""
        checked_name(name)
        known = (launch for launch in self.machine.launches.values() if launch.spec.name == name)
        return next((launch.output[-bytes_max:] for launch in known), b"")

    def close(self) -> None:
        """A machine outlives its launchers."""
