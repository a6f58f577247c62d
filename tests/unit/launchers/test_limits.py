"""A process within its bounds."""

import resource
import subprocess
import sys

import pytest

from headrace.base.errors import ConfigurationError
from headrace.launchers.limits import available_cpus, least_used_cpus, limited
from headrace.launchers.protocol import Resources

own_words = (
    "import os, resource; print(sorted(os.sched_getaffinity(0)), "
    "resource.getrlimit(resource.RLIMIT_DATA)[0], os.getpriority(os.PRIO_PROCESS, 0))"
)


def said(resources: Resources, cpus: tuple[int, ...], program: str = own_words) -> str:
    argv = limited((sys.executable, "-S", "-c", program), resources, cpus)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_program_runs_within_its_bounds() -> None:
    cpu = min(available_cpus())
    bounded = said(Resources(memory_bytes=1 << 30, niceness=19), (cpu,))

    assert bounded == f"[{cpu}] {1 << 30} 19"


def test_what_is_not_asked_for_is_as_it_was() -> None:
    here = (sorted(available_cpus()), resource.getrlimit(resource.RLIMIT_DATA)[0])

    assert said(Resources(niceness=19), ()) == f"{here[0]} {here[1]} 19"


def test_a_program_that_wants_more_memory_than_its_bound_fails() -> None:
    grows = "bytearray(1 << 30)"

    assert "MemoryError" in said(Resources(memory_bytes=256 << 20), (), grows)


def test_without_bounds_the_command_is_as_given() -> None:
    assert limited(("engine", "--port", "1"), Resources(), ()) == ("engine", "--port", "1")


def test_a_missing_program_is_missing_with_bounds_too() -> None:
    with pytest.raises(FileNotFoundError):
        limited(("/missing/engine",), Resources(niceness=1), ())


def test_a_program_cannot_be_preferred_to_others() -> None:
    with pytest.raises(ConfigurationError, match="0 to 19"):
        limited(("engine",), Resources(niceness=-5), ())


def test_a_launch_gets_processors_that_the_fewest_others_have() -> None:
    cpus = range(4)

    assert least_used_cpus(cpus, 2, []) == (0, 1)
    assert least_used_cpus(cpus, 2, [(0, 1)]) == (2, 3)
    assert least_used_cpus(cpus, 1.5, [(0, 1), (2, 3), (0,), (3,)]) == (1, 2)
    assert least_used_cpus(cpus, 0.5, [(0,)]) == (1,)


def test_a_launch_that_wants_all_processors_or_names_none_is_not_pinned() -> None:
    assert least_used_cpus(range(2), 2, []) == ()
    assert least_used_cpus(range(2), None, []) == ()
