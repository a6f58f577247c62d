"""Each family as a small random model of `transformers`, saved and read back, against its logits.

The float reference must agree to 1e-4 of them in float32. The compiled runner keeps keys and values
as halves: it must be near, and choose the same tokens greedily. The GGUF file that we make of the
model must be near, too, computed by us and by llama.cpp.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy as safetensors
from numpy.typing import NDArray

from headrace.engine.cpu_runner import CpuRunner, KvCacheType
from headrace.engine.runner import StepBatch
from headrace.engine.scored_text import log_softmax
from headrace.kernels.reference.transformer import forward
from headrace.sim.progress import SilentProgress
from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.huggingface.config import read_config
from headrace.weights.huggingface.tensor_map import as_float
from headrace.weights.layout import runner_tensors
from headrace.weights.model_file import ModelFile, open_model
from headrace.weights.quantize import quantize_model
from headrace.weights.tensor import TensorType

torch = pytest.importorskip("torch", reason="PyTorch is the oracle: pip install torch==2.13.0")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")

torch.set_num_threads(1)

Floats = NDArray[np.float32]
sizes: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
prompt_tokens, answer_tokens = 24, 8
spare_rows = 6  # of the embedding, as real models have more of them than tokens


@dataclass(frozen=True)
class Case:
    """A configuration class of transformers and what differs from `sizes`."""

    config: str
    changes: dict[str, Any] = field(default_factory=dict)
    prompt_tokens: int = prompt_tokens


def scaled(kind: str, **changes: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **changes}}


longrope = {
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "original_max_position_embeddings": 64,
}
own_yarn = {
    "factor": 3.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 20.0,
    "beta_slow": 2.0,
    "attention_factor": 1.3,
}
phi3 = {"sliding_window": 12, "resid_pdrop": 0.0}
mixed_layers = ["sliding_attention", "full_attention", "sliding_attention"]
cases = {
    "llama": Case("LlamaConfig"),
    "llama, tied, biased": Case(
        "LlamaConfig", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
    ),
    "llama 3.1": Case(
        "LlamaConfig",
        scaled(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
        prompt_tokens=70,
    ),
    "linear": Case("LlamaConfig", scaled("linear", factor=4.0)),
    "dynamic": Case("LlamaConfig", scaled("dynamic", factor=2.0)),
    "yarn": Case(
        "LlamaConfig",
        scaled("yarn", factor=4.0, original_max_position_embeddings=32),
        prompt_tokens=70,
    ),
    "yarn, its own numbers": Case(
        "LlamaConfig",
        scaled("yarn", **own_yarn),
        prompt_tokens=70,
    ),
    "yarn, two magnitudes": Case(
        "LlamaConfig",
        scaled(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            mscale=0.7,
            mscale_all_dim=1.2,
        ),
        prompt_tokens=70,
    ),
    "mistral": Case("MistralConfig", {"sliding_window": 7}),
    "smollm2": Case(
        "LlamaConfig",
        {
            "tie_word_embeddings": True,
            "hidden_size": 96,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 32,
        },
    ),
    "qwen2": Case("Qwen2Config"),
    "qwen2.5": Case("Qwen2Config", {"tie_word_embeddings": True, "use_sliding_window": False}),
    "qwen3": Case("Qwen3Config", {"tie_word_embeddings": True}),
    "qwen3, wide heads": Case("Qwen3Config", {"head_dim": 32, "num_key_value_heads": 1}),
    "gemma": Case("GemmaConfig"),
    "gemma2": Case(
        "Gemma2Config",
        {"sliding_window": 7, "query_pre_attn_scalar": 24, "layer_types": mixed_layers},
    ),
    "gemma3": Case(
        "Gemma3TextConfig",
        {"sliding_window": 7, "query_pre_attn_scalar": 24, "layer_types": mixed_layers},
    ),
    "gemma3, scaled": Case(
        "Gemma3TextConfig",
        {
            "sliding_window": 7,
            "query_pre_attn_scalar": 32,
            "num_hidden_layers": 6,
            "head_dim": 32,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    "phi3": Case("Phi3Config", phi3),
    "phi4": Case("Phi3Config", {**phi3, "sliding_window": None, "rope_theta": 250_000.0}),
    "phi4-mini, short": Case(
        "Phi3Config",
        {**phi3, **scaled("longrope", **longrope, partial_rotary_factor=1.0)},
    ),
    "phi4-mini, long": Case(
        "Phi3Config",
        {**phi3, "sliding_window": None, **scaled("longrope", **longrope)},
        prompt_tokens=70,
    ),
    "phi4-mini, partial": Case(
        "Phi3Config",
        {
            **phi3,
            "sliding_window": None,
            **scaled(
                "longrope",
                short_factor=[1.0 + i / 8 for i in range(6)],
                long_factor=[2.0 + i for i in range(6)],
                original_max_position_embeddings=64,
                partial_rotary_factor=0.75,
            ),
        },
        prompt_tokens=70,
    ),
    "smollm3": Case("SmolLM3Config", {"no_rope_layers": [1, 0, 1]}),
    "granite": Case(
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.1,
            "logits_scaling": 2.0,
        },
    ),
    "olmo2": Case("Olmo2Config"),
    "mixtral": Case("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": Case(
        "Qwen2MoeConfig",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 80,
        },
    ),
    "qwen3-moe": Case(
        "Qwen3MoeConfig",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe, unnormed": Case(
        "Qwen3MoeConfig",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "norm_topk_prob": False,
            "attention_bias": True,
        },
    ),
    "gpt-oss": Case(
        "GptOssConfig",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 7,
            **scaled(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=32,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
            ),
        },
        prompt_tokens=70,
    ),
}


def save_model(case: Case, path: Path) -> Any:
    torch.manual_seed(5)
    config = getattr(transformers, case.config)(**(sizes | case.changes))
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():  # norms and biases begin as ones and zeros, which hides mistakes
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias") or "sinks" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model = model.float().eval()
    model.save_pretrained(path)
    return model


def tokens_of(count: int) -> list[int]:
    drawn: list[int] = np.random.default_rng(3).integers(3, 96, count).tolist()
    return drawn


def oracle(model: Any, tokens: list[int]) -> Floats:
    """The logits after each token."""
    with torch.no_grad():
        logits: Floats = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return logits


def step(tokens: list[int], start: int) -> StepBatch:
    end = start + len(tokens)
    blocks = -(-end // 16)
    return StepBatch(
        token_ids=np.array(tokens, np.int32),
        row_starts=np.array([0, len(tokens)], np.int32),
        context_lens=np.array([end], np.int32),
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


def run(
    file: ModelFile,
    spec: ArchitectureSpec,
    tokens: list[int],
    context: int,
    kv_cache_dtype: KvCacheType = "f16",
) -> tuple[Floats, list[int]]:
    """The runner's logits after the prompt, in two chunks, and its greedy answer."""
    answer: list[int] = []
    with CpuRunner(
        file,
        spec,
        kv_tokens=context,
        rows_max=128,
        sequences_max=2,
        threads=2,
        kv_cache_dtype=kv_cache_dtype,
    ) as runner:
        cut = len(tokens) // 2
        runner.execute(step(tokens[:cut], 0))
        result, logits = runner.execute_logits(step(tokens[cut:], cut))
        answer.append(int(result.token_ids[0]))
        for index in range(answer_tokens - 1):
            result = runner.execute(step(answer[-1:], len(tokens) + index))
            answer.append(int(result.token_ids[0]))
    return logits[0], answer


@pytest.mark.parametrize("name", list(cases))
def test_a_family_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    case = cases[name]
    tokens = tokens_of(case.prompt_tokens)
    model = save_model(case, tmp_path)
    served = 64 if case.prompt_tokens < 64 else 112
    with open_model(tmp_path) as file:
        spec = read_architecture(file)
        values = {
            tensor.name: as_float(tensor) for tensor in runner_tensors(spec, file.tensors).values()
        }
        logits, found = run(file, spec, tokens, served)
        quantize_model(file, tmp_path / "model.gguf", TensorType.F16, SilentProgress())
    with open_model(tmp_path / "model.gguf") as file:
        written, _ = run(file, read_architecture(file), tokens, served)
    expected = oracle(model, tokens + found)
    reference = forward(replace(spec, context_length=served), values, tokens)
    count = len(tokens)
    scale = max(1.0, float(expected.std()))
    np.testing.assert_allclose(reference, expected[:count], atol=1e-4 * scale)
    np.testing.assert_allclose(logits, expected[count - 1], atol=2e-2 * scale)
    np.testing.assert_allclose(written, logits, atol=4e-2 * scale)
    assert found == expected[count - 1 : -1].argmax(axis=-1).tolist()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Qwen2Config", {"max_window_layers": 2}),
        ("Qwen3Config", {"max_window_layers": 2}),
        ("Qwen2MoeConfig", {"max_window_layers": 4}),
        ("Qwen2Config", {"use_sliding_window": False}),
        ("Qwen3Config", {"use_sliding_window": None}),
        ("Gemma3TextConfig", {"sliding_window_pattern": 3}),
    ],
)
def test_windows_that_no_list_of_layers_names_are_where_transformers_has_them(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    settings = sizes | {"num_hidden_layers": 6, "sliding_window": 7, "use_sliding_window": True}
    settings = {key: value for key, value in (settings | changes).items() if value is not None}
    config = getattr(transformers, kind)(**settings)
    written = settings | {"model_type": config.model_type}
    if config.model_type == "qwen2_moe":
        written |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    reading = read_config(written, tmp_path / "config.json")
    prefix = f"{reading.family.name}.attention.sliding_window"
    flags = reading.metadata.get(f"{prefix}_pattern", [False] * 6)
    assert isinstance(flags, list)
    assert flags == [layer == "sliding_attention" for layer in config.layer_types]
    assert reading.metadata.get(prefix) == (7 if any(flags) else None)


def test_dynamic_scaling_is_that_of_the_served_context(tmp_path: Path) -> None:
    """transformers scales by the text it reads; we by the longest that is served, for all texts."""
    case = Case("LlamaConfig", {**scaled("dynamic", factor=2.0), "max_position_embeddings": 32})
    tokens = tokens_of(80)
    expected = oracle(save_model(case, tmp_path), tokens)
    with open_model(tmp_path) as file:
        spec = replace(read_architecture(file), context_length=80)
        values = {
            tensor.name: as_float(tensor) for tensor in runner_tensors(spec, file.tensors).values()
        }
    unscaled = replace(spec, rope_scale=1.0)
    scale = max(1.0, float(expected.std()))
    np.testing.assert_allclose(forward(spec, values, tokens), expected, atol=1e-4 * scale)
    assert np.abs(forward(unscaled, values, tokens) - expected).max() > 1e-2 * scale


def test_a_model_of_text_and_images_is_computed_by_what_its_part_for_text_leaves_out(
    tmp_path: Path,
) -> None:
    """As Gemma 3 is published: the usual numbers are not written, and images have weights."""
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "query_pre_attn_scalar")
    usual = transformers.Gemma3TextConfig().to_dict()
    changes = {name: usual[name] for name in (*names, "max_position_embeddings", "rms_norm_eps")}
    changes |= {"num_hidden_layers": 7, "sliding_window": 7, "rope_parameters": None}
    rope = {"factor": 8.0, "rope_type": "linear"}
    model = save_model(Case("Gemma3TextConfig", changes | {"rope_scaling": rope}), tmp_path)
    written = ("hidden_size", "intermediate_size", "num_hidden_layers", "sliding_window")
    text = {name: (sizes | changes)[name] for name in written}
    text |= {"model_type": "gemma3_text", "rope_scaling": rope}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    weights = safetensors.load_file(tmp_path / "model.safetensors")
    weights = {f"language_model.{name}": values for name, values in weights.items()}
    weights |= {
        f"{part}.weight": np.ones(4, np.float32)
        for part in ("vision_tower.x", "multi_modal_projector.y")
    }
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    tokens = tokens_of(prompt_tokens)
    with open_model(tmp_path) as file:
        logits, _ = run(file, read_architecture(file), tokens, 64)
        assert any("images" in note for note in file.notes)
    expected = oracle(model, tokens)[-1]
    np.testing.assert_allclose(logits, expected, atol=2e-2 * max(1.0, float(expected.std())))


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss", "mistral"])
def test_windows_caps_and_sinks_hold_over_an_int8_cache(name: str, tmp_path: Path) -> None:
    tokens = tokens_of(prompt_tokens)
    expected = oracle(save_model(cases[name], tmp_path), tokens)[-1]
    with open_model(tmp_path) as file:
        logits, _ = run(file, read_architecture(file), tokens, 64, "q8")
    assert np.sqrt(np.mean((logits - expected) ** 2)) < 0.1 * expected.std()


# What llama.cpp has no metadata for, so that it computes another model: windows of Mistral and
# Phi-3, which layers have one, Gemma's other scale, YaRN between whole pairs, and experts' shares
# that are left as they are. It has a name for YaRN's slow end, and takes 1 whatever the file says.
whole_text = {"sliding_window": None}
llama_cpp_changes: dict[str, dict[str, Any]] = {
    "mistral": whole_text,
    "phi3": whole_text,
    "phi4-mini, short": whole_text,
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16, "layer_types": ["sliding_attention"] * 3},
    "smollm3": {"no_rope_layers": [1, 1, 1]},
    "qwen3-moe, unnormed": {"norm_topk_prob": True, "attention_bias": False},
    "gpt-oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    "yarn, its own numbers": scaled("yarn", **own_yarn | {"beta_slow": 1.0}),
}


def write_tokenizer(path: Path) -> None:
    """Tokens of letters, so that llama.cpp holds none back until the rest of a character comes."""
    step = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    vocabulary = {f"w{index}": index for index in range(sizes["vocab_size"] - spare_rows)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    (path / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": step, "model": model}))


def llama_cpp_logprobs(path: Path, tokens: list[int], context: int) -> Floats:
    """The log-probabilities after a prompt, (vocab_size,)."""
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = context, 1, False
    params.cpuparams.n_threads = 1
    answer = xllamacpp.Server(params).handle_completions(
        {"prompt": tokens, "max_tokens": 1, "temperature": 0, "logprobs": sizes["vocab_size"]}
    )
    [token] = answer["choices"][0]["logprobs"]["content"]
    found = np.full(sizes["vocab_size"], -np.inf, np.float32)
    for entry in token["top_logprobs"]:
        found[entry["id"]] = entry["logprob"]
    return found


@pytest.mark.parametrize("name", list(cases))
def test_llama_cpp_computes_the_same_of_the_file_we_write(name: str, tmp_path: Path) -> None:
    """llama.cpp rounds a context up to 256, so that it takes the long divisors of the short case,
    which both then have."""
    case = cases[name]
    case = replace(case, changes=case.changes | llama_cpp_changes.get(name, {}))
    tokens = tokens_of(case.prompt_tokens)
    save_model(case, tmp_path)
    write_tokenizer(tmp_path)
    path = tmp_path / "model.gguf"
    with open_model(tmp_path) as directory:
        quantize_model(directory, path, TensorType.F16, SilentProgress())
    with open_model(path) as file:
        logits, _ = run(file, read_architecture(file), tokens, 112)
    expected = llama_cpp_logprobs(path, tokens, 112)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(log_softmax(logits), expected, atol=0.05)
