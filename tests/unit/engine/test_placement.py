"""Where a device map puts layers, experts and ranks, what it refuses, and that the bits stay."""

import os
from dataclasses import replace

import pytest

from headrace.base.errors import ConfigurationError
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.memory_plan import RunnerSizes, plan_devices, plan_memory, sum_of
from headrace.engine.placement import Device, Placement, anywhere, place_layers, place_ranks
from headrace.sim.small_model import Work, base_spec, small_model, step, tokens_of

nodes = (Device("cpu:0", (0, 1), 1 << 30), Device("cpu:1", (2, 3), 1 << 30))
dense = replace(base_spec, num_layers=4)
experts = replace(dense, expert_count=4, experts_used=2, expert_ffn_size=96)


def homes(placement: Placement) -> list[tuple[str, str]]:
    names = [device.name for device in placement.devices]
    layers = [placement.spec.layer(index) for index in range(placement.spec.num_layers)]
    return [(names[layer.device], names[layer.experts_device]) for layer in layers]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ["cpu"] * 4),
        ("cpu:1", ["cpu:1"] * 4),
        ("numa", ["cpu:0"] * 2 + ["cpu:1"] * 2),
        ("0-2=cpu:1,3=cpu:0", ["cpu:1"] * 3 + ["cpu:0"]),
        ("3=cpu, 0-2=cpu:0", ["cpu:0"] * 3 + ["cpu"]),
    ],
)
def test_every_layer_has_the_device_that_the_map_says(
    text: str | None, expected: list[str]
) -> None:
    assert homes(place_layers(text, 0, dense, nodes)) == [(name, name) for name in expected]


def test_experts_may_be_elsewhere_than_their_layer() -> None:
    placed = place_layers("0-3=cpu:0,1-2.experts=cpu:1", 0, experts, nodes)
    assert [on for _, on in homes(placed)] == ["cpu:0", "cpu:1", "cpu:1", "cpu:0"]
    placed = place_layers("0-3=cpu:0,1-2.experts=cpu:1", 2, experts, nodes)
    assert [on for _, on in homes(placed)] == ["cpu", "cpu", "cpu:1", "cpu:0"]
    assert {layer for layer, _ in homes(placed)} == {"cpu:0"}


@pytest.mark.parametrize(
    ("text", "cpu_moe_layers", "reason"),
    [
        ("cuda:0", 0, "computes on CPUs, and this machine has cpu, cpu:0, cpu:1"),
        ("0-3=cpu:7", 0, "'cpu:7'"),
        ("0-4=cpu:0", 0, "this model has 0 to 3"),
        ("3-1=cpu:0", 0, "not there"),
        ("0-1=cpu:0,3=cpu:1", 0, "leaves out layer 2"),
        ("0-2=cpu:0,2-3=cpu:1", 0, "names layer 2 twice"),
        ("0-3=cpu:0,1.experts=cpu:1", 0, "this model has none"),
        ("0-3:cpu:0=", 0, "is no entry"),
        (None, 1, "this model has none"),
    ],
)
def test_a_map_that_cannot_be_followed_is_refused(
    text: str | None, cpu_moe_layers: int, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        place_layers(text, cpu_moe_layers, dense, nodes)


def test_more_layers_of_experts_than_there_are_and_encoders_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="has 4 layers"):
        place_layers(None, 5, experts, nodes)
    with pytest.raises(ConfigurationError, match="generate text"):
        place_layers("cpu:0", 0, replace(dense, encoder=True), nodes)


def test_ranks_have_a_device_each() -> None:
    assert place_ranks(None, 2, nodes) == (anywhere, anywhere)
    assert place_ranks("numa", 4, nodes) == (nodes[0], nodes[0], nodes[1], nodes[1])
    assert place_ranks("cpu:1,cpu:0", 2, nodes) == (nodes[1], nodes[0])
    assert place_ranks("cpu:1", 2, nodes) == (nodes[1], nodes[1])
    for text in ("0-1=cpu:0", "cpu:0,cpu:1,cpu"):
        with pytest.raises(ConfigurationError, match="with 2 ranks give 2 devices"):
            place_ranks(text, 2, nodes)


@pytest.mark.parametrize("map_text", ["0=cpu:0,1-2=cpu:1,3=cpu:0", "0-3=cpu:1,0-2.experts=cpu:0"])
def test_placed_layers_compute_the_same_bits_in_the_planned_bytes(map_text: str) -> None:
    """Two devices on this machine's cores, a team of threads each."""
    cores = sorted(os.sched_getaffinity(0))
    here = (Device("cpu:0", (cores[0],)), Device("cpu:1", tuple(cores[-2:])))
    spec = experts if "experts" in map_text else dense
    placed = place_layers(map_text, 0, spec, here)
    model = small_model(spec, "Q8_0")
    sizes = RunnerSizes(512, 64, 2)
    steps = [
        step([Work(tokens_of(40), 0, [3, 1, 2]), Work(tokens_of(5, 1), 0, [4])]),
        step([Work([7], 40, [3, 1, 2]), Work([8], 5, [4])]),
    ]
    logits = []
    try:
        for devices, each in (((anywhere,), spec), (placed.devices, placed.spec)):
            with CpuRunner(
                model, each, kv_tokens=512, rows_max=64, sequences_max=4, threads=2, devices=devices
            ) as runner:
                logits.append([runner.execute_logits(work)[1] for work in steps])
                held, kv_bytes = runner.device_weight_bytes, runner.kv_bytes
    finally:
        os.sched_setaffinity(0, cores)
    for one, several in zip(*logits, strict=True):
        assert (one == several).all()
    plans = plan_devices(placed.spec, model.tensors, sizes, len(placed.devices))
    norms = 4 * spec.hidden_size * (2 * spec.num_layers + 1)
    for plan, byte_count in zip(plans, held, strict=True):
        assert byte_count <= plan.weights_bytes <= byte_count + norms
    whole = plan_memory(spec, model.tensors, sizes)
    assert sum_of(plans) == whole
    assert whole.kv_bytes == kv_bytes
