"""The engine's options, checked before a process starts."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.engine_settings import ActivationWidth, service_config
from headrace.engine_server.messages import KvTransfers

good: dict[str, Any] = {
    "kv_tokens": 8192,
    "threads": None,
    "context_length": None,
    "max_num_seqs": 32,
}


def test_what_was_chosen_reaches_the_engine() -> None:
    config = service_config(
        Path("tiny.gguf"),
        "tiny",
        **{**good, "threads": 3, "tenant_cache_tokens": 64},
        activation_bits=ActivationWidth.SIXTEEN,
    )
    assert config.engine.activation_bits == 16
    assert service_config(Path("tiny.gguf"), "tiny", **good).engine.activation_bits == 8
    assert (config.engine.kv_tokens, config.engine.threads) == (8192, 3)
    assert config.engine.salt_tokens_max == 64


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kv_tokens", 63),
        ("kv_tokens", 99_999_999_999),  # more than the kernels' integers hold
        ("threads", 0),
        ("threads", 257),
        ("context_length", 1),
        ("context_length", 2**31),
        ("tenant_cache_tokens", 0),
        ("max_num_seqs", 0),
        ("max_num_seqs", 100_000_000),
    ],
)
def test_a_number_out_of_range_is_refused_by_option_and_range(option: str, value: int) -> None:
    flag = "--" + option.replace("_", "-")
    with pytest.raises(ConfigurationError, match=rf"^{flag} is {value}; it must be \d+ to \d+\.$"):
        service_config(Path("tiny.gguf"), "tiny", **{**good, option: value})


def test_ranks_swap_and_move_kv_as_one_process_does() -> None:
    moves = KvTransfers("::1", 0, 1.0)
    engine = service_config(Path("m"), "m", **good, kv_transfers=moves, tensor_parallel=2).engine
    alone = service_config(Path("m"), "m", **good, kv_transfers=moves).engine
    assert engine == msgspec.structs.replace(alone, tensor_parallel=2)
    assert engine.host_tokens > 0
    with pytest.raises(ConfigurationError, match="--tensor-parallel-size is 9"):
        service_config(Path("m"), "m", **good, tensor_parallel=9)
