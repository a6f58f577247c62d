"""A model with a number that is none does not get as far as loading."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import ModelFileError
from headrace.cli.engine_settings import LoadCheck, service_config
from headrace.cli.load_checks import check_numbers, with_load_checks
from headrace.engine_server.messages import LoadProbe
from headrace.engine_server.service import ServiceConfig
from headrace.weights.gguf_writer import TensorPlan, write_gguf
from headrace.weights.sources import ResolvedModel
from headrace.weights.tensor import TensorType


def write_model(path: Path, value: float) -> ResolvedModel:
    def pieces() -> Iterator[bytes]:
        yield np.full(64, value, np.float32).tobytes()

    write_gguf(
        path, {"general.architecture": "llama"}, [TensorPlan("a", TensorType.F32, (64,), pieces)]
    )
    return ResolvedModel(path, "ab" * 32, "weir")


def test_a_model_that_passed_is_not_read_again(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", 1.0)
    check_numbers(model, tmp_path / "cache")
    write_model(tmp_path / "m.gguf", float("nan"))  # under the digest of the one before
    check_numbers(model, tmp_path / "cache")


def test_a_bad_number_is_refused_each_time(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", float("nan"))
    for _ in range(2):
        with pytest.raises(ModelFileError, match="tensor a has a value that is not a finite"):
            check_numbers(model, tmp_path / "cache")


def test_a_cache_that_takes_nothing_does_not_keep_a_model_from_loading(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a directory")
    check_numbers(write_model(tmp_path / "m.gguf", 1.0), tmp_path / "cache")


@pytest.fixture
def config(tmp_path: Path) -> ServiceConfig:
    return service_config(
        tmp_path / "m.gguf",
        "weir",
        kv_tokens=512,
        threads=1,
        context_length=None,
        max_num_seqs=1,
    )


def test_what_is_checked_is_what_was_asked_for(tmp_path: Path, config: ServiceConfig) -> None:
    cache = tmp_path / "cache"
    sound = write_model(tmp_path / "m.gguf", 1.0)
    for check, refuses in ((LoadCheck.WARN, False), (LoadCheck.REFUSE, True)):
        probe = with_load_checks(config, check, sound, cache).engine.load_probe
        assert probe == LoadProbe(sound.sha256, str(cache), refuses_noise=refuses)
    broken = replace(write_model(tmp_path / "d.gguf", float("nan")), sha256="cd" * 32)
    assert with_load_checks(config, LoadCheck.OFF, broken, cache).engine.load_probe is None
    with pytest.raises(ModelFileError, match="tensor a"):  # a draft model, too
        with_load_checks(config, LoadCheck.WARN, sound, cache, broken)
