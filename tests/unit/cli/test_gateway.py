"""The gateway command refuses what would be unsafe, and says what to do."""

from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.gateway import gateway
from headrace.cli.platform_files import PlatformFiles


def test_a_public_address_needs_the_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--allow-public"):
        gateway(data_dir=tmp_path, host="0.0.0.0", port=0)


def test_a_directory_without_a_platform_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="headrace up"):
        PlatformFiles(tmp_path).read_pepper()


def test_a_short_pepper_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="5 bytes"):
        PlatformFiles(tmp_path).read_pepper()


def test_a_proxy_that_is_no_network_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--trusted-proxies: .*10\.0\.0\.1/8"):
        gateway(data_dir=tmp_path, port=0, trusted_proxies="10.0.0.0/8, 10.0.0.1/8")
