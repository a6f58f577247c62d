"""LoRA adapters on the command line of `serve`, `run` and `deployments`."""

from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError, InvalidRequest, SourceError
from headrace.cli.adapter_options import with_adapters
from headrace.cli.lora_options import lora_bodies
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.service import ServiceConfig
from headrace.sim.adapter_files import write_adapter
from headrace.sim.progress import SilentProgress
from headrace.sim.tiny_model import tiny_spec
from headrace.weights.lora import opening
from headrace.weights.lora.opening import find_adapter, open_adapter
from headrace.weights.sources import ResolvedModel


@pytest.fixture
def config() -> ServiceConfig:
    engine = EngineConfig(
        "", kv_tokens=0, sequences_max=0, step_rows=0, waiting_max=0, cache_namespace=""
    )
    return ServiceConfig(Path(), "m", engine)


def test_adapters_are_found_before_anything_starts(config: ServiceConfig, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "sql", tiny_spec, seed=1)
    engine = with_adapters(config, [f"sql={adapter}"], 2, 16, tmp_path).engine
    assert [(each.name, each.path) for each in engine.adapters] == [("sql", str(adapter))]
    assert (engine.adapters_max, engine.adapter_rank_max) == (2, 16)
    assert with_adapters(config, None, 0, 16, tmp_path).engine.adapters == ()


@pytest.mark.parametrize(
    ("loras", "count_max", "rank_max", "message"),
    [
        (["sql"], 2, 16, "write it as NAME=PATH"),
        (["sql="], 2, 16, "write it as NAME=PATH"),
        (["a={0}", "b={0}"], 1, 16, "--max-loras is 1"),
        (["a={0}", "a={0}"], 2, 16, "names a twice"),
        ([], 257, 16, "0 to 256"),
        ([], 1, 0, "1 to 512"),
    ],
)
def test_options_that_are_wrong_are_named(
    config: ServiceConfig,
    tmp_path: Path,
    loras: list[str],
    count_max: int,
    rank_max: int,
    message: str,
) -> None:
    adapter = write_adapter(tmp_path / "sql", tiny_spec, seed=1)
    with pytest.raises(ConfigurationError, match=message):
        with_adapters(
            config, [each.format(adapter) for each in loras], count_max, rank_max, tmp_path
        )


def test_an_adapter_that_is_not_there_or_badly_named_is_refused(
    config: ServiceConfig, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="no such adapter"):
        with_adapters(config, [f"a={tmp_path}"], 2, 16, tmp_path)
    adapter = write_adapter(tmp_path / "sql", tiny_spec, seed=1)
    with pytest.raises(InvalidRequest, match="cannot name an adapter"):
        with_adapters(config, [f"a:b={adapter}"], 2, 16, tmp_path)


def test_a_repository_of_the_hub_becomes_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = write_adapter(tmp_path / "sql", tiny_spec, seed=1)

    def fetched(reference: str, _cache: Path, _progress: object) -> ResolvedModel:
        name = reference.removeprefix("hf://owner/sql/").removesuffix("@main")
        return ResolvedModel(adapter / name, f"digest of {name}", name)

    monkeypatch.setattr(opening, "resolve", fetched)
    for _ in range(2):  # the second time it is there
        found = find_adapter("hf://owner/sql", tmp_path / "cache", SilentProgress())
        read = open_adapter(found, tiny_spec, 16)
        assert read.digest == open_adapter(adapter, tiny_spec, 16).digest


def test_a_deployments_adapters_are_pairs() -> None:
    assert lora_bodies(["sql=/a=b"]) == [{"name": "sql", "source": "/a=b"}]
    assert lora_bodies(None) is None
    with pytest.raises(ConfigurationError, match="NAME=SOURCE"):
        lora_bodies(["sql"])
