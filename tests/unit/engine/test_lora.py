"""LoRA adapters in the compiled runner, against the same model with `W + scale * B A` merged in.

The model is a small random one of `transformers`, which also gives the logits of the merged one.
Steps with several adapters must give each sequence what it gets alone, to the bit.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.runner import StepBatch
from headrace.sim.progress import SilentProgress
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf_writer import TensorPlan, write_gguf
from headrace.weights.lora.adapter import LoraAdapter, no_layer
from headrace.weights.lora.opening import open_adapter
from headrace.weights.model_file import open_model
from headrace.weights.quantize import quantize_model
from headrace.weights.tensor import Tensor, TensorType

torch = pytest.importorskip("torch", reason="PyTorch is the oracle: pip install torch==2.13.0")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
torch.set_num_threads(1)

Floats = NDArray[np.float32]
sizes: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
attention = ("q_proj", "k_proj", "v_proj", "o_proj")
dense = (*attention, "gate_proj", "up_proj", "down_proj")
vocabulary = ("embed_tokens", "lm_head")
prompt_count, answer_count = 20, 6


@dataclass(frozen=True)
class Case:
    config: str
    modules: tuple[str, ...]
    changes: dict[str, Any] = field(default_factory=dict)
    adapter: dict[str, Any] = field(default_factory=dict)


cases = {
    "llama: rows of Q and K are in another order": Case("LlamaConfig", dense),
    "qwen3, rank-stabilized": Case("Qwen3Config", dense, adapter={"use_rslora": True}),
    "phi3: fused matrices": Case(
        "Phi3Config", ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), {"sliding_window": 12}
    ),
    "gemma2: branches are normed": Case(
        "Gemma2Config", dense, {"sliding_window": 7, "query_pre_attn_scalar": 24}
    ),
    "olmo2, some modules, an alpha of its own": Case(
        "Olmo2Config", ("q_proj", "down_proj"), adapter={"alpha_pattern": {"down_proj": 3.0}}
    ),
    "llama: embedding and output too": Case("LlamaConfig", (*dense, *vocabulary)),
    "gemma2: a scaled embedding": Case(
        "Gemma2Config",
        vocabulary,
        {"sliding_window": 7, "query_pre_attn_scalar": 24, "tie_word_embeddings": False},
    ),
    "qwen3-moe: attention and output": Case(
        "Qwen3MoeConfig",
        (*attention, "lm_head"),
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
}


@dataclass(frozen=True)
class Site:
    """A model, and adapters for it, on disk."""

    model: Any
    path: Path  # the model's directory

    def write_adapter(
        self, name: str, modules: tuple[str, ...], *, rank: int = 4, seed: int = 1, **config: Any
    ) -> Path:
        """A random adapter as PEFT saves it."""
        rng = np.random.default_rng(seed)
        tensors: dict[str, NDArray[np.float64]] = {}
        for module, weight in self.weights(modules).items():
            outputs, inputs = weight.shape
            if module.endswith("embed_tokens"):  # the weight has a row for each token
                inputs, outputs = outputs, inputs
            half_a, half_b = names_of(module)
            tensors[half_a] = rng.normal(size=(rank, inputs)) / 8
            tensors[half_b] = rng.normal(size=(outputs, rank)) / 8
            if module.split(".")[-1] in vocabulary:  # which PEFT saves beside
                tensors[f"base_model.model.{module}.base_layer.weight"] = weight.detach().numpy()
        directory = self.path.parent / name
        directory.mkdir()
        floats = {key: value.astype(np.float32) for key, value in tensors.items()}
        save_file(floats, directory / "adapter_model.safetensors")
        fields = {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": 8,
            "target_modules": list(modules),
            "bias": "none",
        }
        (directory / "adapter_config.json").write_text(json.dumps(fields | config))
        return directory

    def weights(self, modules: tuple[str, ...]) -> dict[str, Any]:
        return {
            name.removesuffix(".weight"): parameter
            for name, parameter in self.model.named_parameters()
            if name.endswith(".weight") and name.split(".")[-2] in modules
        }

    @contextmanager
    def merged(self, adapter: Path) -> Iterator[Any]:
        """The model with an adapter's product added to its weights."""
        from safetensors.numpy import load_file  # noqa: PLC0415 - an oracle of one function

        config = json.loads((adapter / "adapter_config.json").read_text())
        tensors = load_file(adapter / "adapter_model.safetensors")
        whole = {key: value.clone() for key, value in self.model.state_dict().items()}
        with torch.no_grad():
            for module, weight in self.weights(tuple(config["target_modules"])).items():
                half_a, half_b = names_of(module)
                up, down = tensors[half_b], tensors[half_a]
                last = module.split(".")[-1]
                alpha = config.get("alpha_pattern", {}).get(last, config["lora_alpha"])
                divisor = np.sqrt(config["r"]) if config.get("use_rslora") else config["r"]
                product = up @ down if last != "embed_tokens" else (up @ down).T
                weight.add_(torch.from_numpy(alpha / divisor * product).float())
        yield self.model
        self.model.load_state_dict(whole)


def names_of(module: str) -> tuple[str, str]:
    """What PEFT calls A and B of a module."""
    prefix = f"base_model.model.{module}.lora_"
    if module.endswith("embed_tokens"):
        return f"{prefix}embedding_A", f"{prefix}embedding_B"
    return f"{prefix}A.weight", f"{prefix}B.weight"


def make_site(tmp_path: Path, case: Case) -> Site:
    torch.manual_seed(5)
    config = getattr(transformers, case.config)(**(sizes | case.changes))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.float().eval()
    path = tmp_path / "model"
    model.save_pretrained(path)
    return Site(model, path)


def open_for(site: Site, adapter: Path, rank_max: int = 64) -> LoraAdapter:
    with open_model(site.path) as file:
        return open_adapter(adapter, read_architecture(file), rank_max)


@contextmanager
def runner_of(
    path: Path,
    adapters: Mapping[int, LoraAdapter],
    threads: int = 2,
    sequences_max: int = 8,
) -> Iterator[Any]:
    with (
        open_model(path) as file,
        CpuRunner(
            file,
            read_architecture(file),
            kv_tokens=128 * sequences_max,
            rows_max=256,
            sequences_max=sequences_max,
            threads=threads,
            adapters_max=4,
        ) as runner,
    ):
        for slot, adapter in adapters.items():
            runner.load_adapter(slot, adapter)
        yield runner


def tokens_of(count: int, seed: int = 3) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(3, 96, count).tolist()
    return drawn


def step(work: list[tuple[list[int], int, int]]) -> StepBatch:
    """Sequences as (new tokens, where they start, slot of the adapter), of eight blocks each."""
    starts = np.cumsum([0, *(len(tokens) for tokens, _, _ in work)]).astype(np.int32)
    count = len(work)
    slots = np.array([slot for _, _, slot in work], np.int32)
    return StepBatch(
        token_ids=np.concatenate([np.array(tokens, np.int32) for tokens, _, _ in work]),
        row_starts=starts,
        context_lens=np.array([start + len(tokens) for tokens, start, _ in work], np.int32),
        block_ids=np.arange(count * 8, dtype=np.int32),
        block_starts=np.arange(0, count * 8 + 1, 8, dtype=np.int32),
        sampled=np.arange(count, dtype=np.int32),
        temperature=np.zeros(count, np.float32),
        top_k=np.zeros(count, np.int32),
        top_p=np.ones(count, np.float32),
        min_p=np.zeros(count, np.float32),
        seed=np.zeros(count, np.uint64),
        position=np.zeros(count, np.int64),
        adapters=slots if (slots >= 0).any() else None,
    )


def run(runner: Any, slot: int, tokens: list[int]) -> tuple[Floats, list[int]]:
    """The logits after the prompt, in two chunks, and the greedy answer."""
    cut = len(tokens) // 2
    runner.execute(step([(tokens[:cut], 0, slot)]))
    result, logits = runner.execute_logits(step([(tokens[cut:], cut, slot)]))
    answer = [int(result.token_ids[0])]
    for index in range(answer_count - 1):
        result = runner.execute(step([(answer[-1:], len(tokens) + index, slot)]))
        answer.append(int(result.token_ids[0]))
    return logits[0], answer


def oracle(model: Any, tokens: list[int]) -> Floats:
    with torch.no_grad():
        logits: Floats = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return logits


@pytest.mark.parametrize("name", list(cases))
def test_an_adapter_computes_what_the_merged_model_does(name: str, tmp_path: Path) -> None:
    case = cases[name]
    site = make_site(tmp_path, case)
    directory = site.write_adapter("adapter", case.modules, **case.adapter)
    tokens = tokens_of(prompt_count)
    with site.merged(directory) as model:
        model.save_pretrained(tmp_path / "merged")
        expected = oracle(model, tokens)[-1]
    with runner_of(tmp_path / "merged", {}) as runner:
        merged_logits, merged_answer = run(runner, -1, tokens)
    with runner_of(site.path, {1: open_for(site, directory)}) as runner:
        logits, answer = run(runner, 1, tokens)
        plain_logits, _ = run(runner, -1, tokens)
    scale = max(1.0, float(expected.std()))
    np.testing.assert_allclose(logits, merged_logits, atol=1e-3 * scale)
    np.testing.assert_allclose(logits, expected, atol=2e-2 * scale)
    assert answer == merged_answer
    assert np.abs(plain_logits - logits).max() > 0.05 * scale, "the adapter changes something"


def pieces_of(tensor: Tensor) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([tensor.data.tobytes()])


def test_a_gguf_adapter_is_the_same_adapter_in_the_models_own_order(tmp_path: Path) -> None:
    site = make_site(tmp_path, cases["llama: rows of Q and K are in another order"])
    adapter = open_for(site, site.write_adapter("adapter", (*dense, *vocabulary)))
    path = tmp_path / "adapter.gguf"
    plans = []
    for part in adapter.parts:
        for half, tensor in (("a", part.down), ("b", part.up)):
            layer = "" if part.layer == no_layer else f"blk.{part.layer}."
            name = f"{layer}{part.target}.weight.lora_{half}"
            plans.append(TensorPlan(name, tensor.type, tensor.shape, pieces_of(tensor)))
    metadata = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": 8.0,
    }
    write_gguf(path, metadata, plans)
    read = open_for(site, path)
    assert read.rank == adapter.rank
    assert {part.scale for part in read.parts} == {2.0}
    tokens = tokens_of(prompt_count)
    with runner_of(site.path, {0: adapter, 2: read}) as runner:
        logits, answer = run(runner, 0, tokens)
        read_logits, read_answer = run(runner, 2, tokens)
    np.testing.assert_array_equal(logits, read_logits)
    assert answer == read_answer


@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
def test_a_sequence_gets_the_same_bits_alone_and_among_other_adapters(
    kind: str, tmp_path: Path
) -> None:
    site = make_site(tmp_path, cases["llama: rows of Q and K are in another order"])
    first = open_for(site, site.write_adapter("first", (*dense, *vocabulary), rank=4))
    second = open_for(site, site.write_adapter("second", attention, rank=20, seed=2))
    path = site.path
    if kind != "F32":
        path = tmp_path / "quantized.gguf"
        with open_model(site.path) as file:
            quantize_model(file, path, TensorType[kind], SilentProgress())
    prompts = [tokens_of(5 + 13 * index, seed=index) for index in range(5)]
    slots = [0, -1, 3, 0, 3]
    work = [(prompt, 0, slot) for prompt, slot in zip(prompts, slots, strict=True)]
    with runner_of(path, {0: first, 3: second}) as runner:
        _, together = runner.execute_logits(step(work))
        for index, item in enumerate(work):
            _, alone = runner.execute_logits(step([item]))
            np.testing.assert_array_equal(alone[0], together[index])
    with runner_of(path, {0: first, 3: second}, threads=1) as runner:
        _, by_one_thread = runner.execute_logits(step(work))
    np.testing.assert_array_equal(by_one_thread, together)
    with runner_of(path, {}) as runner:
        _, plain = runner.execute_logits(step([(prompts[1], 0, -1)]))
    np.testing.assert_array_equal(plain[0], together[1])


def test_single_rows_of_many_sequences_get_the_same_bits_alone(tmp_path: Path) -> None:
    site = make_site(tmp_path, cases["llama: rows of Q and K are in another order"])
    first = open_for(site, site.write_adapter("first", dense, rank=4))
    changes_all = (*dense, *vocabulary)
    second = open_for(site, site.write_adapter("second", changes_all, rank=20, seed=2))
    slots = [-1] * 2 + [0] * 40 + [2] * 3 + [0] * 2  # more of one than are taken together
    work = [([3 + index], 0, slot) for index, slot in enumerate(slots)]
    with runner_of(site.path, {0: first, 2: second}, sequences_max=48) as runner:
        _, together = runner.execute_logits(step(work))
        for index in (0, 2, 33, 34, 41, 42, 44, 45, 46):
            _, alone = runner.execute_logits(step([work[index]]))
            np.testing.assert_array_equal(alone[0], together[index])


def test_a_slot_is_empty_before_and_after(tmp_path: Path) -> None:
    site = make_site(tmp_path, cases["llama: rows of Q and K are in another order"])
    adapter = open_for(site, site.write_adapter("adapter", dense))
    with runner_of(site.path, {0: adapter}) as runner:
        with pytest.raises(ValueError, match="slot without an adapter"):
            runner.execute(step([([5], 0, 1)]))
        with pytest.raises(ValueError, match=r"outside 0\.\.3"):
            runner.load_adapter(4, adapter)
        runner.unload_adapter(0)
        with pytest.raises(ValueError, match="slot without an adapter"):
            runner.execute(step([([5], 0, 0)]))


def test_kv_that_was_discarded_can_be_used_again(tmp_path: Path) -> None:
    site = make_site(tmp_path, cases["llama: rows of Q and K are in another order"])
    tokens = tokens_of(prompt_count)
    with runner_of(site.path, {}) as runner:
        before, _ = run(runner, -1, tokens)
        runner.discard_kv()
        after, _ = run(runner, -1, tokens)
    np.testing.assert_array_equal(before, after)


def test_discarded_kv_goes_back_to_the_system(tmp_path: Path) -> None:
    site = make_site(tmp_path, cases["llama: rows of Q and K are in another order"])
    blocks = list(range(8192))
    with (
        open_model(site.path) as file,
        CpuRunner(
            file,
            read_architecture(file),
            kv_tokens=16 * len(blocks),
            rows_max=16,
            sequences_max=1,
            threads=1,
        ) as runner,
    ):
        runner.import_blocks(blocks, runner.export_blocks(blocks))  # every page is written once
        before_bytes = psutil.Process().memory_info().rss
        runner.discard_kv()
        freed_bytes = before_bytes - psutil.Process().memory_info().rss
        assert freed_bytes > 0.8 * runner.kv_bytes
