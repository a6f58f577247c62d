"""What the machine has, and what `headrace doctor` says of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import doctor
from headrace.cli.machine import (
    Disk,
    read_disk,
    read_processor,
)
from headrace.launchers.machine import Memory, read_cores, read_memory

Run = Callable[..., int]


def test_the_processor_is_named_with_the_instructions_that_matter(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu avx2 fma avx512_vnni lm\n"
        "processor\t: 1\nmodel name\t: Other\n"
    )
    processor = read_processor(path)
    assert processor.name == "Some CPU @ 2.0GHz"
    assert processor.features == ["fma", "avx2", "avx512_vnni"]


def test_a_containers_quota_counts(tmp_path: Path) -> None:
    path = tmp_path / "cpu.max"
    path.write_text("50000 100000\n")
    assert read_cores(path).usable == 0.5
    path.write_text("max 100000\n")
    assert read_cores(path).usable >= 1
    assert read_cores(tmp_path / "missing").usable >= 1


def test_a_containers_memory_limit_counts(tmp_path: Path) -> None:
    info, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    info.write_text("MemTotal: 900 kB\nMemAvailable:     2048 kB\n")
    limit.write_text("1048576\n")
    assert read_memory(info, limit) == Memory(total_bytes=1 << 20, available_bytes=1 << 20)
    limit.write_text("max\n")
    assert read_memory(info, limit).available_bytes == 2 << 20


def test_a_directory_that_is_not_there_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    disk = read_disk(tmp_path / "a" / "b")
    assert (disk.exists, disk.writable, disk.mode) == (False, True, None)
    (tmp_path / "file").write_text("")
    assert read_disk(tmp_path / "file").writable is False


def test_every_problem_has_a_fix() -> None:
    full = Disk(path="/d", exists=True, writable=True, mode="755", free_bytes=10)
    closed = Disk(path="/d", exists=True, writable=False, mode="700", free_bytes=10**12)
    processor = read_processor()
    checks = [
        doctor.check_kernels(doctor.Kernels(None, "no such module"), processor),
        doctor.check_kernels(doctor.Kernels("portable"), processor),
        doctor.check_memory(Memory(total_bytes=10, available_bytes=10)),
        doctor.check_directory("data directory", "--data-dir", full),
        doctor.check_directory("data directory", "--data-dir", closed),
        doctor.check_privacy(full),
        doctor.check_open_files(256),
    ]
    for check in checks:
        assert check.status in ("warning", "missing")
        assert check.fix


def test_a_good_machine_has_nothing_to_fix() -> None:
    good = Disk(path="/d", exists=True, writable=True, mode="700", free_bytes=10**12)
    processor = read_processor()
    checks = [
        doctor.check_kernels(doctor.Kernels("avx2"), processor),
        doctor.check_memory(Memory(total_bytes=1 << 34, available_bytes=1 << 33)),
        doctor.check_directory("data directory", "--data-dir", good),
        doctor.check_privacy(good),
        doctor.check_open_files(65_536),
    ]
    assert [(check.status, check.fix) for check in checks] == [("ok", None)] * 5


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_kernels", lambda: doctor.Kernels("avx2"))


@pytest.mark.usefixtures("built")
def test_json_has_every_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.doctor(tmp_path, tmp_path / "cache", as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["kernels"]["name"] == "avx2"
    assert report["data_dir"]["path"] == str(tmp_path)
    assert {check["name"] for check in report["checks"]} >= {"kernels", "memory", "open files"}


def test_an_unbuilt_extension_is_missing_and_the_status_says_so(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "kernels_module", "headrace.kernels._not_there")
    assert run("doctor", "--data-dir", str(tmp_path), "--cache-dir", str(tmp_path)) == 1
    shown = capsys.readouterr().out
    assert "missing" in shown
    assert "make setup" in shown
