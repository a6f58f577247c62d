"""Whole small models of quantized safetensors, against transformers on what they mean.

transformers reads MXFP4 itself; of the other formats it gets the weights that the packed
numbers mean. Where a format is kept exactly the float reference agrees to 1e-4, as float models do.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.runner import StepBatch
from headrace.kernels.reference.dequantize import dequantize
from headrace.kernels.reference.transformer import forward
from headrace.sim.progress import SilentProgress
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.layout import runner_tensors
from headrace.weights.model_file import open_model
from headrace.weights.quantized_copy import quantized_copy
from headrace.weights.sources import ResolvedModel
from headrace.weights.tensor import TensorType

torch = pytest.importorskip("torch", reason="PyTorch is the oracle: pip install torch==2.13.0")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
safetensors_torch = pytest.importorskip("safetensors.torch")

torch.set_num_threads(1)

Floats = NDArray[np.float32]
Parts = dict[str, Any]
sizes: dict[str, Any] = {
    **{"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    **{"max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0},
    **{"bos_token_id": 1, "eos_token_id": 2},
}
tokens: list[int] = np.random.default_rng(3).integers(3, 96, 24).tolist()
group_size = 32


def save(kind: str, path: Path, **changes: Any) -> Any:
    torch.manual_seed(5)
    config = getattr(transformers, kind)(**(sizes | changes))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.float().eval().save_pretrained(path)
    return model


def rewrite(path: Path, settings: Parts, change: Callable[[str, Any], Parts | None]) -> None:
    """Replace tensors by the parts that `change` makes of them, and declare the quantization."""
    file = path / "model.safetensors"
    made: Parts = {}
    for name, tensor in safetensors_torch.load_file(file).items():
        parts = change(name, tensor)
        made |= {name: tensor} if parts is None else parts
    torch_parts = {name: torch.as_tensor(part).contiguous() for name, part in made.items()}
    safetensors_torch.save_file(torch_parts, file, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))


def logits_of(model: Any) -> Floats:
    with torch.no_grad():
        logits: Floats = model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()
    return logits


def one_step() -> StepBatch:
    blocks = -(-len(tokens) // 16)
    return StepBatch(
        token_ids=np.array(tokens, np.int32),
        row_starts=np.array([0, len(tokens)], np.int32),
        context_lens=np.array([len(tokens)], np.int32),
        block_ids=np.arange(blocks, dtype=np.int32),
        block_starts=np.array([0, blocks], np.int32),
        sampled=np.zeros(1, np.int32),
        temperature=np.zeros(1, np.float32),
        top_k=np.zeros(1, np.int32),
        top_p=np.ones(1, np.float32),
        min_p=np.zeros(1, np.float32),
        seed=np.zeros(1, np.uint64),
        position=np.zeros(1, np.int64),
    )


def check(path: Path, expected: Floats, *, exact: bool) -> None:
    """The reference and the compiled runner compute these logits, or are near where weights are
    rounded."""
    with open_model(path) as file:
        assert file.notes
        spec = read_architecture(file)
        values = {
            tensor.name: dequantize(int(tensor.type), np.array(tensor.data), tensor.shape)
            for tensor in runner_tensors(spec, file.tensors).values()
        }
        runner = CpuRunner(file, spec, kv_tokens=128, rows_max=32, sequences_max=1, threads=1)
    spread = float(expected.std())
    found = forward(spec, values, tokens)
    with runner:
        _, logits = runner.execute_logits(one_step())
    np.testing.assert_allclose(logits[0], found[-1], atol=2e-2 * spread)
    if exact:
        np.testing.assert_allclose(found, expected, atol=1e-4 * spread)
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.06 * spread


def words(codes: NDArray[np.int64], order: tuple[int, ...] = tuple(range(8))) -> Any:
    """(rows, columns) codes of four bits, eight columns a word."""
    found = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for nibble, column in enumerate(order):
        found |= codes[:, column::8].astype(np.uint32) << np.uint32(4 * nibble)
    return found.view(np.int32)


def parts_of(method: str, stem: str, weight: Floats) -> tuple[Parts, Floats]:
    """A format's parts of a matrix, and the weights that they mean."""
    rng = np.random.default_rng(weight.size)
    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, -1, group_size)
    symmetric = method in ("gptq", "int8")
    steps = {"int8": 127}.get(method, 7)
    scales = (np.abs(groups).max(axis=2) / steps).astype(np.float16).astype(np.float32)
    zeros = np.full(scales.shape, 8) if symmetric else rng.integers(6, 11, scales.shape)
    group_of = np.arange(inputs) // group_size
    if method == "gptq by order":
        group_of = rng.permutation(group_of)
    if method == "int8":
        codes = np.clip(np.rint(weight / scales[:, group_of]), -128, 127).astype(np.int8)
        codes[0, 0] = -128  # the largest negative one has no positive counterpart
        parts: Parts = {f"{stem}.weight": codes, f"{stem}.weight_scale": scales}
        return parts, codes.astype(np.float32) * scales[:, group_of]
    codes = np.clip(np.rint(weight / scales[:, group_of] + zeros[:, group_of]), 0, 15).astype(int)
    meant = (codes - zeros[:, group_of]).astype(np.float32) * scales[:, group_of]
    parts = {f"{stem}.scales": scales.T.astype(np.float16)}
    if method == "awq":
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        parts |= {f"{stem}.qweight": words(codes.T, order), f"{stem}.qzeros": words(zeros.T, order)}
    else:
        parts |= {f"{stem}.qweight": words(codes).T, f"{stem}.qzeros": words(zeros.T - 1)}
        parts[f"{stem}.g_idx"] = group_of.astype(np.int32)
    return parts, meant


methods: dict[str, tuple[Parts, bool]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, True),
    "gptq by order": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, False),
    "awq": ({"quant_method": "awq", "bits": 4, "zero_point": True}, True),
    "int8": ({"quant_method": "compressed-tensors", "format": "int-quantized"}, True),
}


@pytest.mark.parametrize("method", list(methods))
def test_integers_compute_what_they_mean(method: str, tmp_path: Path) -> None:
    settings, exact = methods[method]
    model = save("LlamaConfig", tmp_path)
    state = model.state_dict()

    def change(name: str, tensor: Any) -> Parts | None:
        if "_proj" not in name:
            return None
        parts, meant = parts_of(method, name.removesuffix(".weight"), tensor.numpy())
        state[name].copy_(torch.tensor(meant))
        return parts

    rewrite(tmp_path, settings, change)
    check(tmp_path, logits_of(model), exact=exact)


def test_fp8_computes_what_it_means(tmp_path: Path) -> None:
    model = save("LlamaConfig", tmp_path)
    state = model.state_dict()

    def change(name: str, tensor: Any) -> Parts | None:
        if "_proj" not in name:
            return None
        rows, columns = (-(-side // 32) for side in tensor.shape)
        scales = torch.rand(rows, columns) * 0.01 + 0.001
        spread = scales.repeat_interleave(32, 0).repeat_interleave(32, 1)
        stored = (tensor / spread).to(torch.float8_e4m3fn)
        state[name].copy_(stored.float() * spread)
        return {name: stored, f"{name}_scale_inv": scales}

    rewrite(tmp_path, {"quant_method": "fp8", "weight_block_size": [32, 32]}, change)
    check(tmp_path, logits_of(model), exact=False)


def test_mxfp4_experts_compute_what_transformers_does(tmp_path: Path) -> None:
    save("GptOssConfig", tmp_path, num_local_experts=4, num_experts_per_tok=2, sliding_window=7)
    generator = torch.Generator().manual_seed(0)

    def change(name: str, tensor: Any) -> Parts | None:
        if not name.endswith(("gate_up_proj", "down_proj")):
            return None
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)

        def draw(least: int, end: int, *size: int) -> Any:
            return torch.randint(least, end, size, dtype=torch.uint8, generator=generator)

        return {
            f"{name}_blocks": draw(0, 256, *shape, 16),
            f"{name}_scales": draw(122, 126, *shape),
        }

    rewrite(tmp_path, {"quant_method": "mxfp4"}, change)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path,
        quantization_config=transformers.Mxfp4Config(dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
    )
    check(tmp_path, logits_of(model.float().eval()), exact=True)


def test_a_copy_of_a_quantized_directory_computes_the_same(tmp_path: Path) -> None:
    model = save("LlamaConfig", tmp_path / "m")
    state = model.state_dict()

    def change(name: str, tensor: Any) -> Parts | None:
        if "_proj" not in name:
            return None
        parts, meant = parts_of("gptq by order", name.removesuffix(".weight"), tensor.numpy())
        state[name].copy_(torch.tensor(meant))
        return parts

    rewrite(tmp_path / "m", {"quant_method": "gptq", "bits": 4}, change)
    source = ResolvedModel(tmp_path / "m", "ab" * 32, "weir")
    made = quantized_copy(source, TensorType.Q8_0, tmp_path / "cache", SilentProgress())
    values = []
    for path in (source.path, made.path):
        with open_model(path) as file:
            spec = read_architecture(file)
            tensors = runner_tensors(spec, file.tensors)
            values.append(
                {
                    name: dequantize(int(tensor.type), np.array(tensor.data), tensor.shape)
                    for name, tensor in tensors.items()
                    if "blk." in name
                }
            )
    assert values[0].keys() == values[1].keys()
    for name, matrix in values[0].items():
        np.testing.assert_array_equal(matrix, values[1][name])  # rounded once, then copied
