"""What is said before a model is loaded, and what is refused because it would not fit."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.engine_settings import service_config
from headrace.cli.memory_check import check_memory
from headrace.engine.placement import Device
from headrace.engine_server.messages import EngineConfig, LoadAdapter
from headrace.sim.model_on_disk import write_model_file
from headrace.weights.gguf_writer import TensorPlan, write_gguf
from headrace.weights.tensor import TensorType, bytes_of

mib = 1 << 20
nodes = (Device("cpu:0", (0,), 1 << 30), Device("cpu:1", (1,), 1 << 30))
hidden, ffn, vocab = 256, 512, 4096


def pieces(data: bytes) -> Iterator[bytes]:
    yield data


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Half-precision weights: 3 MiB in all, 1 KiB of KV a token."""
    shapes = {
        **{"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)},
        **{f"blk.0.attn_{name}.weight": (hidden, hidden) for name in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{name}.weight": (ffn, hidden) for name in ("gate", "up")},
        **{"blk.0.ffn_down.weight": (hidden, ffn)},
        **{f"blk.0.{name}_norm.weight": (hidden,) for name in ("attn", "ffn")},
    }
    plans = []
    for name, shape in shapes.items():
        kind = TensorType.F32 if len(shape) == 1 else TensorType.F16
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data = bytes(bytes_of(kind, count))
        plans.append(TensorPlan(name, kind, shape, partial(pieces, data)))
    metadata: dict[str, object] = {
        **{"general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 2048},
        **{"llama.embedding_length": hidden, "llama.feed_forward_length": ffn},
        **{"llama.attention.head_count": 4, "llama.attention.layer_norm_rms_epsilon": 1e-5},
    }
    write_gguf(tmp_path / "weir.gguf", metadata, plans)
    return tmp_path / "weir.gguf"


def config(model: Path, kv_tokens: int, swap_tokens: int = 0, slots: int = 0) -> EngineConfig:
    engine = service_config(
        model,
        "weir",
        kv_tokens=kv_tokens,
        threads=1,
        context_length=None,
        max_num_seqs=1,
        swap_tokens=swap_tokens,
    ).engine
    return msgspec.structs.replace(engine, adapters_max=slots, adapter_rank_max=16)


def test_the_plan_is_told_by_its_parts(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_memory(config(model, 1024), available_bytes=1 << 30)
    said = capsys.readouterr().err
    assert "weights 3.3 MiB, KV 1.0 MiB for 1,024 tokens" in said
    assert "1.0 GiB available" in said
    check_memory(config(model, 1024), available_bytes=1 << 30, quiet=True)
    assert capsys.readouterr().err == ""


def test_a_cache_that_is_too_large_is_refused_with_what_would_fit(model: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_memory(config(model, 1 << 20), available_bytes=160 * mib)
    message = raised.value.message
    tokens = int(message.partition("--kv-tokens ")[2].split()[0])
    assert "with --kv-cache-dtype q8 would fit" in message
    check_memory(config(model, tokens), available_bytes=160 * mib)
    with pytest.raises(ConfigurationError):
        check_memory(config(model, tokens + 1024), available_bytes=160 * mib)


def test_float_weights_that_are_too_large_may_be_quantized(model: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--quantize q8_0 would fit, with 1\.7"):
        check_memory(config(model, 64), available_bytes=125 * mib)


def test_what_fits_in_no_way_is_said(model: Path) -> None:
    with pytest.raises(ConfigurationError, match="The weights alone need"):
        check_memory(config(model, 64), available_bytes=10 * mib)


def test_swapped_kv_and_adapters_are_part_of_the_plan(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_memory(config(model, 1024), available_bytes=1 << 30)
    bare = capsys.readouterr().err
    assert "swapped" not in bare
    assert "adapters" not in bare
    plan = check_memory(config(model, 1024, swap_tokens=512, slots=2), available_bytes=1 << 30)
    assert plan.parts["swapped_kv"] == plan.parts["kv"] // 2 == 512 * 1024
    assert plan.parts["adapters"] > 0
    said = capsys.readouterr().err
    assert "swapped KV 512.0 KiB for 512 tokens" in said
    assert "MiB for 2 of rank 16" in said


def test_swapped_kv_that_is_too_much_is_refused_with_what_would_fit(model: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_memory(config(model, 1024, swap_tokens=1 << 20), available_bytes=160 * mib)
    tokens = int(raised.value.message.partition("--swap-tokens ")[2].split()[0])
    check_memory(config(model, 1024, swap_tokens=tokens), available_bytes=160 * mib)
    with pytest.raises(ConfigurationError):
        check_memory(config(model, 1024, swap_tokens=tokens + 64), available_bytes=160 * mib)


@pytest.mark.parametrize(("ranks", "available_mib"), [(1, 160), (2, 280)])
def test_adapters_that_are_too_many_are_refused_with_how_many_would_fit(
    model: Path, ranks: int, available_mib: int
) -> None:
    def check(slots: int) -> None:
        wanted = config(model, 1024, slots=slots)
        wanted = msgspec.structs.replace(wanted, tensor_parallel=ranks)
        check_memory(wanted, available_bytes=available_mib * mib, nodes=nodes)

    with pytest.raises(ConfigurationError) as raised:
        check(256)
    count = int(raised.value.message.partition("--max-loras ")[2].split()[0])
    assert 0 < count < 256
    check(count)
    with pytest.raises(ConfigurationError):
        check(count + 1)


def test_swapped_kv_of_ranks_is_in_the_first_one(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = msgspec.structs.replace(config(model, 1024, swap_tokens=512), tensor_parallel=2)
    plan = check_memory(wanted, available_bytes=1 << 30, nodes=nodes)
    assert plan.host_kv_bytes == plan.kv_bytes // 2
    with_swap = capsys.readouterr().err
    check_memory(msgspec.structs.replace(wanted, host_tokens=0), 1 << 30, nodes=nodes)
    without = capsys.readouterr().err
    (first, second), (first_without, second_without) = (
        [line for line in said.splitlines() if "memory: rank" in line]
        for said in (with_swap, without)
    )
    assert first != first_without
    assert second == second_without


def test_adapters_that_are_given_are_not_advised_away(model: Path) -> None:
    engine = config(model, 1 << 20, slots=1)
    given = (LoadAdapter("", "house", "house.gguf"),)
    engine = msgspec.structs.replace(engine, adapters=given)
    with pytest.raises(ConfigurationError) as raised:
        check_memory(engine, available_bytes=160 * mib)
    assert "--max-loras" not in raised.value.message
    assert "--kv-tokens" in raised.value.message


def test_ranks_and_devices_are_told_one_by_one(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = msgspec.structs.replace(
        config(model, 1024), tensor_parallel=2, device_map="cpu:0,cpu:1"
    )
    check_memory(ranks, available_bytes=1 << 30, nodes=nodes)
    said = capsys.readouterr().err
    assert "KV 1.0 MiB for 1,024 tokens" in said
    assert "Python 240.0 MiB" in said
    for rank in (0, 1):
        assert f"memory: rank {rank} on cpu:{rank}: 12" in said
    assert said.count("KV 512.0 KiB") == 2
    check_memory(
        msgspec.structs.replace(config(model, 1024), device_map="cpu:1"),
        available_bytes=1 << 30,
        nodes=nodes,
    )
    assert "memory: cpu:1: 12" in capsys.readouterr().err


def test_a_node_that_is_too_small_is_refused_with_a_map_that_fits(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "deep.gguf", layers=8)
    small = (replace(nodes[0], free_bytes=128 * mib), nodes[1])
    wanted = msgspec.structs.replace(config(path, 512), device_map="0-6=cpu:0,7=cpu:1")
    with pytest.raises(ConfigurationError, match=r"cpu:0 has 128\.0 MiB free") as raised:
        check_memory(wanted, available_bytes=1 << 30, nodes=small)
    fitting = raised.value.message.partition("--device-map puts")[2].partition("--device-map ")[2]
    check_memory(
        msgspec.structs.replace(wanted, device_map=fitting.split()[0]),
        available_bytes=1 << 30,
        nodes=small,
    )
    alone = msgspec.structs.replace(wanted, device_map="cpu:0")
    with pytest.raises(ConfigurationError, match="leave --device-map out"):
        check_memory(alone, available_bytes=1 << 30, nodes=small)


def test_a_model_that_cannot_be_split_is_refused_before_it_loads(model: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"4 key/value heads.*give at most 4"):
        check_memory(
            msgspec.structs.replace(config(model, 64), tensor_parallel=8), 1 << 30, nodes=nodes
        )
