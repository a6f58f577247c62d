"""A debug bundle has what a maintainer needs, is bounded, and no canary gets into it."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.redaction import Redactor
from headrace.cli import debug
from headrace.cli.platform_files import PlatformFiles
from headrace.spec.deployments import Replica
from headrace.spec.engine_key import engine_key_of
from headrace.spec.prefix_key import prefix_cache_key

from .conftest import RunningPlatform

Run = Callable[..., int]
canary = "canary9f2c71e0a4b8d6350f1e2d3c4b5a6978"


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {
            name.removeprefix("headrace-debug/"): file.read()
            for name, file in files.items()
            if file
        }


@pytest.fixture
def leaky_logs(tmp_path: Path) -> None:
    """Logs that say what no log should."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "gateway.log").write_text(
        "started\n"
        f"Authorization: Bearer {canary}\n"
        f"hr_{'a' * 26}_{canary}\n"
        f"postgresql://user:{canary}@db/headrace\n"
        f'{{"api_key": "{canary}", "password":"{canary}"}}\n'
        f"HEADRACE_ADMIN_TOKEN={canary}\n"
        f"-----BEGIN PRIVATE KEY-----\n{canary}\n-----END PRIVATE KEY-----\n"
        f"an-admin-token-of-30-characters and {'p' * 32}\n"
    )
    (tmp_path / "pepper").write_bytes(b"p" * 32)


def test_secrets_that_no_file_has_are_known(platform: RunningPlatform, tmp_path: Path) -> None:
    pepper = b"p" * 32
    (tmp_path / "pepper").write_bytes(pepper)
    replica = platform.database.store.create(
        Replica(id="rep_1", name="r", parent_id="dep_1", create_time=0, engine_key_salt="5a")
    )
    known = {*debug.known_secrets(PlatformFiles(tmp_path), None)}
    assert engine_key_of(pepper, replica).encode() in known
    assert prefix_cache_key(pepper).hex().encode() in known


@pytest.mark.usefixtures("platform", "leaky_logs")
def test_it_has_state_and_logs_and_no_secret(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "bundle.tar.gz"
    assert run("debug", "bundle", "--out", str(out)) == 0
    found = contents(out)
    assert {"doctor.json", "api/status.json", "api/deployments.json", "logs/gateway.txt"} <= {
        *found
    }
    assert found["logs/gateway.txt"].startswith(b"started\n")
    for name, content in found.items():
        assert canary.encode() not in content, name
        assert b"an-admin-token-of-30-characters" not in content, name
        assert b"p" * 32 not in content, name
    assert out.stat().st_mode & 0o077 == 0
    assert b"logs/gateway.txt" in found["MANIFEST.txt"]


def test_without_a_platform_it_says_what_is_missing(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "bundle.tar.gz"
    assert run("debug", "bundle", "--out", str(out), "--data-dir", str(tmp_path)) == 0
    assert b"missing  api" in contents(out)["MANIFEST.txt"]


def test_a_long_log_is_cut_to_its_end(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug, "part_bytes_max", 1000)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "control.log").write_text("old\n" * 5000 + "the end\n")
    out = tmp_path / "bundle.tar.gz"
    run("debug", "bundle", "--out", str(out), "--data-dir", str(tmp_path))
    log = contents(out)["logs/control.txt"]
    assert len(log) == 1000
    assert log.endswith(b"the end\n")


def test_a_file_that_is_there_is_not_written_over(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "bundle.tar.gz"
    out.write_text("mine")
    assert run("debug", "bundle", "--out", str(out), "--data-dir", str(tmp_path)) == 1
    assert out.read_text() == "mine"


def test_ordinary_lines_stay_as_they_are() -> None:
    line = b'{"time":1.5,"request_id":"req_01","prompt_tokens":1234567890,"status":200}\n'
    assert Redactor([b"short"]).clean(line + b"a short line") == line + b"a short line"
