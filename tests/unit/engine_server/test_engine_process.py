"""What the engine process refuses to load."""

import msgspec
import pytest

from headrace.base.errors import ConfigurationError
from headrace.engine_server.engine_process import blocks_of, check_context_length
from headrace.engine_server.messages import EngineConfig


def test_a_context_beyond_the_model_or_the_cache_is_refused_not_lowered(
    engine_config: EngineConfig,
) -> None:
    check_context_length(engine_config, 8192, model_limit=8192)
    with pytest.raises(ConfigurationError, match="made for 8192 tokens"):
        check_context_length(engine_config, 8193, model_limit=8192)
    small = msgspec.structs.replace(engine_config, kv_tokens=1024)
    with pytest.raises(ConfigurationError, match="--kv-tokens"):
        check_context_length(small, 1025, model_limit=8192)


def test_a_tenants_share_of_the_cache_is_whole_blocks_and_at_least_one() -> None:
    assert [blocks_of(count, 16) for count in (None, 1, 16, 47, 48)] == [None, 1, 1, 2, 3]
