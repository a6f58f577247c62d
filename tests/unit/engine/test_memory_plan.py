"""The plan by arithmetic against what the runner allocates, and what the system then counts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.memory_plan import MemoryPlan, RunnerSizes, plan_memory
from headrace.engine.packed_sizes import tile_shapes
from headrace.kernels import _native
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf_writer import TensorPlan, write_gguf
from headrace.weights.layout import runner_tensors
from headrace.weights.model_file import open_model
from headrace.weights.tensor import TensorType, bytes_of

sizes = {"hidden": 256, "ffn": 512, "vocab": 100, "layers": 1, "heads": 4}
# Its matrices fill their huge pages, so that it does not matter whether the system has any.
larger = {"hidden": 1024, "ffn": 3840, "vocab": 7680, "layers": 3, "heads": 16}
wide = {"hidden": 1024, "ffn": 4096, "vocab": 512, "layers": 2, "heads": 16}
measured = """
import dataclasses, gc, json, sys
import numpy as np
from pathlib import Path
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.runner import StepBatch
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.lora.adapter import AdapterPart, LoraAdapter, no_layer, target_shapes
from headrace.weights.model_file import open_model
from headrace.weights.tensor import Tensor, TensorType

def one_prompt(count):
    zero, one = np.zeros(1, np.int32), np.ones(1, np.float32)
    return StepBatch(
        token_ids=np.zeros(count, np.int32), row_starts=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32), block_ids=np.arange(count // 16, dtype=np.int32),
        block_starts=np.array([0, count // 16], np.int32), sampled=zero, temperature=one,
        top_k=zero, top_p=one, min_p=one * 0, seed=np.zeros(1, np.uint64),
        position=np.zeros(1, np.int64),
    )

def whole_adapter(spec, rank):
    def tensor(name, rows, columns):
        values = np.ones((rows, columns), np.float32)
        return Tensor(name, TensorType.F32, (rows, columns), values.data.cast("B"))
    vocabulary, hidden = spec.vocab_size, spec.hidden_size
    ends = (("token_embd", (vocabulary, rank), hidden), ("output", (rank, hidden), vocabulary))
    return LoraAdapter(Path(), "", (*(
        AdapterPart(layer, target, 1.0, tensor("a", rank, inputs), tensor("b", outputs, rank))
        for layer in range(spec.num_layers)
        for target, (outputs, inputs) in target_shapes(spec).items()
    ), *(
        AdapterPart(no_layer, target, 1.0, tensor("a", *down), tensor("b", outputs, rank))
        for target, down, outputs in ends
    )))

def private_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))

rows, bits, slots = (int(text) for text in sys.argv[2:])
before = private_bytes()
with open_model(Path(sys.argv[1])) as file:
    spec = read_architecture(file)
    runner = CpuRunner(
        file, spec, kv_tokens=2048, rows_max=rows, sequences_max=8, threads=2,
        activation_bits=bits, adapters_max=slots, adapter_rank_max=24,
    )
for slot in range(slots):
    runner.load_adapter(slot, whole_adapter(spec, 24))
gc.collect()
adapters = np.zeros(1, np.int32) if slots else None
runner.execute(dataclasses.replace(one_prompt(rows), adapters=adapters))
swapped = [runner.export_blocks([block]) for block in range(512 // 16)]
for block in range(runner.info.num_blocks):
    runner.import_blocks([block], runner.export_blocks([block]))  # every page of it is touched
print(json.dumps(private_bytes() - before))
"""


def pieces(data: bytes) -> Iterator[bytes]:
    yield data


def write_model(path: Path, kind: TensorType, made: dict[str, int]) -> Path:
    hidden, ffn, layers = made["hidden"], made["ffn"], made["layers"]
    shapes = {"token_embd.weight": (made["vocab"], hidden), "output_norm.weight": (hidden,)}
    for index in range(layers):
        layer = f"blk.{index}."
        names = ("q", "k", "v", "output")
        shapes |= {f"{layer}attn_{name}.weight": (hidden, hidden) for name in names}
        count, end = ((made["experts"],), "_exps") if "experts" in made else ((), "")
        shapes |= {
            f"{layer}ffn_{name}{end}.weight": (*count, ffn, hidden) for name in ("gate", "up")
        }
        shapes |= {f"{layer}ffn_down{end}.weight": (*count, hidden, ffn)}
        if count:
            shapes[f"{layer}ffn_gate_inp.weight"] = (*count, hidden)
        shapes |= {f"{layer}{name}_norm.weight": (hidden,) for name in ("attn", "ffn")}
    plans = []
    for name, shape in shapes.items():
        stored = TensorType.F32 if len(shape) == 1 else kind
        data = bytes(bytes_of(stored, int(np.prod(shape))))
        plans.append(TensorPlan(name, stored, shape, partial(pieces, data)))
    metadata: dict[str, object] = {
        **{"general.architecture": "llama", "llama.block_count": layers},
        **{"llama.embedding_length": hidden, "llama.feed_forward_length": ffn},
        **{"llama.attention.head_count": made["heads"], "llama.context_length": 2048},
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    if "experts" in made:
        metadata |= {"llama.expert_count": made["experts"], "llama.expert_used_count": 2}
    write_gguf(path, metadata, plans)
    return path


@pytest.mark.parametrize("kind", [*tile_shapes, TensorType.F16, TensorType.F32, TensorType.BF16])
def test_weights_and_kv_are_what_the_runner_allocates(kind: TensorType, tmp_path: Path) -> None:
    with open_model(write_model(tmp_path / "m.gguf", kind, sizes)) as file:
        spec = read_architecture(file)
        runner = CpuRunner(
            file, spec, kv_tokens=256, rows_max=8, sequences_max=2, threads=1, kv_cache_dtype="q8"
        )
        plan = plan_memory(
            spec, runner_tensors(spec, file.tensors), RunnerSizes(256, 8, 1, kv_cache_dtype="q8")
        )
    with runner:
        assert plan.weights_bytes == pytest.approx(runner.weight_bytes, rel=0.03)
        assert plan.kv_bytes == runner.kv_bytes


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux counts memory here")
def test_the_whole_plan_is_what_the_system_counts(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", TensorType.Q8_0, larger)
    plan = check_counted(path, RunnerSizes(2048, 128, 2, adapters_max=2, adapter_rank_max=24))
    assert plan.adapters_bytes > plan.model_bytes / 10
    assert plan.host_kv_bytes > plan.model_bytes / 25


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux counts memory here")
@pytest.mark.parametrize(
    ("kind", "activation_bits", "changes"),
    [
        (TensorType.Q4_0, 16, {}),
        (TensorType.Q4_0, 8, {}),
        (TensorType.F16, 16, {}),
        (TensorType.Q5_K, 8, {"ffn": 512, "experts": 4}),
    ],
)
def test_many_rows_take_what_the_plan_says(
    kind: TensorType, activation_bits: int, changes: dict[str, int], tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", kind, wide | changes)
    sizes = RunnerSizes(2048, 1024, 2, activation_bits=activation_bits)
    plan = check_counted(path, sizes)
    assert plan.workspace_bytes > plan.model_bytes / 3


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux counts memory here")
def test_rows_in_fours_take_what_the_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CPU_ISA", "avx2" if _native.has_fours("avx2", 8) else "portable")
    path = write_model(tmp_path / "m.gguf", TensorType.Q8_0, wide)
    plan = check_counted(path, RunnerSizes(2048, 1024, 2, activation_bits=8))
    assert plan.workspace_bytes > plan.model_bytes / 4


def check_counted(path: Path, sizes: RunnerSizes) -> MemoryPlan:
    """The plan, with 512 tokens in host memory, which the system's count is near."""
    with open_model(path) as file:
        spec = read_architecture(file)
        chosen = replace(sizes, host_tokens=512)
        plan = plan_memory(spec, runner_tensors(spec, file.tensors), chosen)
    numbers = (sizes.rows_max, sizes.activation_bits, sizes.adapters_max)
    command = [sys.executable, "-c", measured, str(path), *(str(number) for number in numbers)]
    counted = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert plan.model_bytes == pytest.approx(counted, rel=0.02)
    assert plan.model_bytes > 80 << 20  # large enough for that to mean something
    return plan
