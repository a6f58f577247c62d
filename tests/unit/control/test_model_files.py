"""Files of this node: which bytes a version means, and that they stay those."""

import threading
from pathlib import Path

from headrace.control.model_files import ModelFiles
from headrace.control.world import ModelFileState
from headrace.sim.clock import ManualClock
from headrace.sim.model_on_disk import write_model_file


def settled(files: ModelFiles, source: Path, sha256: str | None) -> ModelFileState:
    """The state once the fetch ended, well or not."""
    pause = threading.Event()
    while True:
        state = files.state(str(source), sha256)
        if state.path is not None or state.detail.startswith(str(source)):
            return state
        pause.wait(0.01)


def test_a_file_is_known_by_its_digest_and_says_what_it_is(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path / "cache", ManualClock())
    path = write_model_file(tmp_path / "m.gguf")
    state = settled(files, path, None)
    assert state.path == str(path)
    assert state.facts is not None
    assert state.facts.header.quantization == "F16"
    # With the digest that it turned out to have there is nothing to wait for.
    assert files.state(str(path), state.facts.sha256) == state


def test_a_file_that_changed_at_its_place_is_refused(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path / "cache", ManualClock())
    path = write_model_file(tmp_path / "m.gguf")
    first = settled(files, path, None)
    assert first.facts is not None
    digest = first.facts.sha256
    assert settled(files, path, digest).path == str(path)

    other = write_model_file(tmp_path / "other.gguf", seed=1)
    other.replace(path)
    state = settled(files, path, digest)
    assert state.path is None
    assert "make a new version for a changed file" in state.detail
