import json
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import ConfigurationError
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.public_prompts import prompts_max, read_public_prompts


def config_of(model: Path, config: EngineConfig, path: Path, *lines: object) -> EngineConfig:
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return msgspec.structs.replace(config, model_path=str(model), public_prompts_path=str(path))


def test_prompts_are_read_as_requests_begin(
    byte_model: Path, engine_config: EngineConfig, tmp_path: Path
) -> None:
    chat = {"messages": [{"role": "system", "content": "be kind"}]}
    config = config_of(byte_model, engine_config, tmp_path / "p", chat, {"prompt": "once"})
    texts = [bytes(ids) for ids in read_public_prompts(config)]
    assert texts[1] == b"once"
    assert texts[0].startswith(b"system:be kind\n")


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([{"prompt": "a"}, {}], "prompt 2: it needs messages or prompt"),
        ([{"messages": [], "prompt": "a"}], "not both"),
        ([{"text": "a"}], "unknown field"),
        ([5], "prompt 1"),
        ([{"prompt": "a"}] * (prompts_max + 1), "too large"),
    ],
)
def test_a_wrong_file_is_refused(
    byte_model: Path, engine_config: EngineConfig, tmp_path: Path, lines: list[object], what: str
) -> None:
    config = config_of(byte_model, engine_config, tmp_path / "p", *lines)
    with pytest.raises(ConfigurationError, match=what):
        read_public_prompts(config)


def test_a_file_that_is_not_there_is_refused_and_none_is_fine(
    engine_config: EngineConfig, tmp_path: Path
) -> None:
    missing = msgspec.structs.replace(engine_config, public_prompts_path=str(tmp_path / "no"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_public_prompts(missing)
    assert read_public_prompts(engine_config) == ()
