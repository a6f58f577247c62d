import json
from pathlib import Path

import pytest

from headrace.base.errors import ModelFileError
from headrace.engine_server.encoder_process import takes_first_token


def pooling(path: Path, **modes: object) -> Path:
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    return path


def test_the_directory_says_how_tokens_become_a_text(tmp_path: Path) -> None:
    assert not takes_first_token(tmp_path)
    made = pooling(tmp_path, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    assert takes_first_token(made)


def test_the_mean_is_what_most_ask_for(tmp_path: Path) -> None:
    made = pooling(tmp_path, word_embedding_dimension=384, pooling_mode_mean_tokens=True)
    assert not takes_first_token(made)


def test_another_pooling_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="pooling_mode_lasttoken"):
        takes_first_token(pooling(tmp_path, pooling_mode_lasttoken=True))
