"""Finding the control plane, and saying what to do when it is not there."""

import json
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError, Unavailable
from headrace.cli.admin_client import AdminAddress, AdminClient, RemoteError, find_address

from .conftest import RunningPlatform


def write_address(data_dir: Path, mode: int = 0o600) -> Path:
    path = data_dir / "run" / "admin.json"
    path.parent.mkdir(mode=0o700)
    path.write_text(json.dumps({"admin_url": "http://127.0.0.1:8081", "token": "secret-token"}))
    path.chmod(mode)
    return path


def test_the_data_directory_tells_where_the_platform_is(tmp_path: Path) -> None:
    write_address(tmp_path)
    assert find_address(None, None, tmp_path) == AdminAddress(
        "http://127.0.0.1:8081", "secret-token"
    )


def test_both_options_need_no_data_directory(tmp_path: Path) -> None:
    address = find_address("http://h:1", "t", tmp_path / "nowhere")
    assert address == AdminAddress("http://h:1", "t")


def test_no_platform_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no platform runs in .*headrace up"):
        find_address(None, None, tmp_path)


def test_a_token_is_never_sent_to_another_address(tmp_path: Path) -> None:
    write_address(tmp_path)
    with pytest.raises(ConfigurationError, match="another platform"):
        find_address("http://evil.example", None, tmp_path)


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    write_address(tmp_path, 0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        find_address(None, None, tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_address(tmp_path).write_text("{")
    with pytest.raises(ConfigurationError, match="damaged"):
        find_address(None, None, tmp_path)


def test_a_refused_connection_says_what_to_start() -> None:
    client = AdminClient(AdminAddress("http://127.0.0.1:1", "t"))
    with pytest.raises(Unavailable, match=r"connection refused.*headrace up"):
        client.get("/status")


def test_a_wrong_token_is_explained_and_not_repeated(platform: RunningPlatform) -> None:
    client = AdminClient(AdminAddress(platform.url, "wrong-token"))
    with pytest.raises(RemoteError, match="does not know this token") as refused:
        client.get("/status")
    assert "wrong-token" not in str(refused.value)


@pytest.mark.parametrize("url", ["", "localhost:8081", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--admin-url"):
        AdminClient(AdminAddress(url, "t"))
