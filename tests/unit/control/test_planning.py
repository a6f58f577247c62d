"""Plans against what is publicly known: parameter counts, checkpoint sizes, KV a token."""

import json
from pathlib import Path

import pytest

from headrace.base.errors import InvalidRequest, ModelFileError, NotFound
from headrace.control.planning.config_shape import read_config
from headrace.control.planning.device import Device, gib, parse_device
from headrace.control.planning.known_shapes import find_shape, shapes
from headrace.control.planning.layouts import make_plan
from headrace.control.planning.precision import find_precision
from headrace.control.planning.sizes import Demand, kv_bytes_of_sequence, weight_bytes

# Billions of parameters as the publishers state them; of Gemma's the language model's part.
published = {
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "llama-3.1-405b": 405.85,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.72,
    "qwen3-4b": 4.02,
    "qwen3-8b": 8.19,
    "qwen3-14b": 14.77,
    "qwen3-32b": 32.76,
    "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.09,
    "deepseek-v3": 671.0,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 140.6,
    "gemma-3-1b": 1.0,
    "gemma-3-4b": 3.88,
    "gemma-3-12b": 11.77,
    "gemma-3-27b": 27.0,
    "smollm2-135m": 0.1345,
    "smollm2-360m": 0.3618,
    "smollm2-1.7b": 1.711,
}
active_published = {
    "qwen3-30b-a3b": 3.3,
    "qwen3-235b-a22b": 22.0,
    "deepseek-v3": 37.0,
    "gpt-oss-20b": 3.6,
    "gpt-oss-120b": 5.1,
    "mixtral-8x7b": 12.9,
}
h100 = parse_device("H100:80GB")


def test_every_shape_is_checked() -> None:
    assert {shape.name for shape in shapes} == set(published)


@pytest.mark.parametrize("name", published)
def test_parameters_are_those_that_publishers_state(name: str) -> None:
    assert find_shape(name).parameters / 1e9 == pytest.approx(published[name], rel=0.02)


@pytest.mark.parametrize("name", active_published)
def test_active_parameters_are_those_that_publishers_state(name: str) -> None:
    shape = find_shape(name)
    active = shape.active_parameters
    with_input = active + shape.vocabulary * shape.hidden  # some count the look-up too
    errors = [abs(count / 1e9 / active_published[name] - 1) for count in (active, with_input)]
    assert min(errors) < 0.05


@pytest.mark.parametrize(
    ("name", "precision", "gib_published"),
    [
        ("llama-3.1-8b", "bf16", 14.96),  # 16.06 GB of safetensors
        ("llama-3.1-70b", "bf16", 131.4),
        ("gpt-oss-20b", "mxfp4", 12.8),
        ("gpt-oss-120b", "mxfp4", 60.8),
        ("deepseek-v3", "fp8", 626.0),  # without the multi-token module
        ("mixtral-8x7b", "bf16", 87.0),
    ],
)
def test_weights_are_as_large_as_the_checkpoints(
    name: str, precision: str, gib_published: float
) -> None:
    size = weight_bytes(find_shape(name), find_precision(precision)) / gib
    assert size == pytest.approx(gib_published, rel=0.05)


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-3.1-8b", 131_072),
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-405b", 516_096),
        ("deepseek-v3", 70_272),  # 61 layers of 576 numbers
        ("qwen3-30b-a3b", 98_304),
    ],
)
def test_kv_of_a_token_is_what_the_configuration_implies(name: str, bytes_per_token: int) -> None:
    assert kv_bytes_of_sequence(find_shape(name), 1600, 16) == 1600 * bytes_per_token


def test_windowed_layers_keep_their_window_only() -> None:
    gemma = find_shape("gemma-3-27b")
    short, long = (kv_bytes_of_sequence(gemma, tokens, 16) for tokens in (1024, 65_536))
    assert 64 * short * 0.16 < long < 64 * short * 0.2, "ten of 62 layers grow"


def test_well_known_fits() -> None:
    def devices(name: str, device: str, context: int, concurrency: int, **kw: str) -> int:
        shape = find_shape(name)
        precision = find_precision(kw.get("precision", shape.native_precision))
        made = make_plan(shape, precision, parse_device(device), Demand(context, concurrency))
        assert made.best is not None
        return made.best.devices

    assert devices("llama-3.1-8b", "H100", 8192, 32) == 1
    assert devices("llama-3.1-70b", "H100", 8192, 16) == 4, "two hold hardly more than weights"
    assert devices("llama-3.1-70b", "H200", 8192, 8) == 2
    assert devices("llama-3.1-70b", "H100", 8192, 16, precision="fp8") == 2
    assert devices("deepseek-v3", "H200", 8192, 64) == 8
    assert devices("gpt-oss-120b", "H100", 8192, 16) == 1
    assert devices("llama-3.1-405b", "H100", 8192, 16) == 16
    assert devices("smollm2-135m", "CPU:4GB", 2048, 8) == 1


def test_each_layout_says_what_a_device_holds_and_why_it_does_not_fit() -> None:
    shape = find_shape("llama-3.1-70b")
    made = make_plan(shape, find_precision("bf16"), h100, Demand(32_768, 64))
    by_size = {(x.tensor_parallel, x.pipeline_parallel): x for x in made.layouts}
    one = by_size[1, 1]
    assert (one.replicas, one.reason) == (0, "the weights do not fit")
    eight = by_size[8, 1]
    usable = int(h100.memory_bytes * h100.usable_share)
    assert eight.weights_bytes + eight.workspace_bytes + eight.kv_bytes_free == usable
    assert eight.kv_bytes_needed <= eight.kv_bytes_free
    assert eight.replicas * eight.sequences >= 64
    assert made.best is not None
    assert made.best.devices == min(x.devices for x in made.layouts if x.replicas)


def test_groups_divide_the_heads() -> None:
    made = make_plan(find_shape("smollm2-135m"), find_precision("bf16"), h100, Demand(2048, 8))
    assert {layout.tensor_parallel for layout in made.layouts} == {1}, "nine heads"


def test_devices_are_read_with_and_without_memory() -> None:
    assert parse_device("a100:40GB") == Device("A100", 40 * gib)
    assert parse_device("MI300X").memory_bytes == 192 * gib
    assert parse_device("Foo9:12").memory_bytes == 12 * gib
    for wrong in ("Foo9", "", ":80GB", "H100:eighty"):
        with pytest.raises(InvalidRequest):
            parse_device(wrong)


def test_names_of_tuned_variants_and_unknown_names() -> None:
    assert find_shape("meta-llama/Llama-3.1-8B-Instruct").name == "llama-3.1-8b"
    assert find_shape("google/gemma-3-27b-it").name == "gemma-3-27b"
    with pytest.raises(NotFound, match="smollm2-135m"):
        find_shape("unheard-of")
    with pytest.raises(InvalidRequest, match="8,192"):
        make_plan(find_shape("smollm2-135m"), find_precision("bf16"), h100, Demand(100_000, 1))


def test_a_config_file_gives_the_same_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["DeepseekV3ForCausalLM"],
                "num_hidden_layers": 61,
                "hidden_size": 7168,
                "num_attention_heads": 128,
                "num_key_value_heads": 128,
                "intermediate_size": 18432,
                "moe_intermediate_size": 2048,
                "vocab_size": 129280,
                "n_routed_experts": 256,
                "n_shared_experts": 1,
                "num_experts_per_tok": 8,
                "first_k_dense_replace": 3,
                "q_lora_rank": 1536,
                "kv_lora_rank": 512,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "max_position_embeddings": 163840,
            }
        )
    )
    read = read_config(tmp_path)
    assert read.parameters == find_shape("deepseek-v3").parameters
    assert kv_bytes_of_sequence(read, 1600, 16) == 1600 * 70_272
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match="num_hidden_layers"):
        read_config(tmp_path)
