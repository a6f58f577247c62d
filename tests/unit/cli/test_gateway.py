"""The gateway command refuses what would be unsafe, and says what to do."""

import stat
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.control import read_secrets
from headrace.cli.gateway import gateway
from headrace.cli.init import init
from headrace.cli.platform_files import PlatformFiles


def test_a_public_address_needs_the_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--allow-public"):
        gateway(data_dir=tmp_path, host="0.0.0.0", port=0)


def test_a_directory_without_a_platform_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"headrace up.*headrace init"):
        PlatformFiles(tmp_path).read_pepper()
    with pytest.raises(ConfigurationError, match=r"headrace up.*headrace init"):
        read_secrets(tmp_path)


def test_secrets_of_parts_that_start_one_by_one_are_made_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "parts"
    init(data_dir=directory)
    made = read_secrets(directory)
    files = PlatformFiles(directory)
    assert capsys.readouterr().out.split() == [str(files.pepper), str(files.admin)]
    for path in (files.pepper, files.admin):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    init(admin_url="http://127.0.0.1:9", data_dir=directory)
    assert read_secrets(directory) == made


def test_a_short_pepper_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="5 bytes"):
        PlatformFiles(tmp_path).read_pepper()


def test_a_proxy_that_is_no_network_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--trusted-proxies: .*10\.0\.0\.1/8"):
        gateway(data_dir=tmp_path, port=0, trusted_proxies="10.0.0.0/8, 10.0.0.1/8")
