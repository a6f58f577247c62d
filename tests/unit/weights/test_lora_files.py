"""Adapters in PEFT's layout: what cannot be computed is refused, by the name of what it is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.base.errors import InvalidRequest, ModelFileError
from headrace.sim.tiny_model import tiny_spec
from headrace.weights.lora.adapter import LoraAdapter, no_layer
from headrace.weights.lora.opening import check_adapter_name, open_adapter

hidden, vocab = tiny_spec.hidden_size, tiny_spec.vocab_size
queries = tiny_spec.num_heads * tiny_spec.head_dim
query = "model.layers.0.self_attn.q_proj"


def write_adapter(
    directory: Path,
    shapes: dict[str, tuple[int, ...]] | None = None,
    *,
    rank: int = 4,
    seed: int = 1,
    **config: Any,
) -> Path:
    """An adapter of one matrix, or of tensors of these shapes."""
    if shapes is None:
        shapes = {f"{query}.lora_A": (rank, hidden), f"{query}.lora_B": (queries, rank)}
    rng = np.random.default_rng(seed)
    directory.mkdir()
    tensors = {
        f"base_model.model.{name}.weight": rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, directory / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(fields | config))
    return directory


def open_for(directory: Path, rank_max: int = 64) -> LoraAdapter:
    return open_adapter(directory, tiny_spec, rank_max)


refusals: dict[str, tuple[dict[str, Any], str]] = {
    "DoRA": ({"use_dora": True}, "DoRA"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, "lm_head is a whole matrix"),
    "biases": ({"bias": "all"}, "bias"),
    "another method": ({"peft_type": "IA3"}, "IA3 is not served"),
    "expert parameters": ({"target_parameters": ["experts.gate"]}, "target_parameters"),
    "embedding and output tied": ({"ensure_weight_tying": True}, "ensure_weight_tying"),
    "no rank": ({"r": 0}, "must be positive"),
}


@pytest.mark.parametrize("name", list(refusals))
def test_what_is_not_computed_is_refused_by_name(name: str, tmp_path: Path) -> None:
    changes, message = refusals[name]
    with pytest.raises(ModelFileError, match=message):
        open_for(write_adapter(tmp_path / "adapter", **changes))


broken: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "half a pair": ({f"{query}.lora_A": (4, hidden)}, "only one of"),
    "an embedding of more tokens": (
        {
            "model.embed_tokens.lora_embedding_A": (4, vocab + 1),
            "model.embed_tokens.lora_embedding_B": (hidden, 4),
        },
        r"embed_tokens: .* for another model",
    ),
    "a magnitude": ({"model.layers.0.mlp.up_proj.lora_magnitude_vector": (96,)}, "DoRA"),
    "a whole matrix": ({"lm_head": (vocab, hidden)}, r"lm_head\.weight.* serve the merged"),
    "another model's": (
        {f"{query}.lora_A": (4, hidden // 2), f"{query}.lora_B": (queries, 4)},
        "for another model",
    ),
    "a layer too many": (
        {
            "model.layers.7.self_attn.q_proj.lora_A": (4, hidden),
            "model.layers.7.self_attn.q_proj.lora_B": (queries, 4),
        },
        "layer 7",
    ),
    "a router": (
        {
            "model.layers.0.mlp.router.lora_A": (4, hidden),
            "model.layers.0.mlp.router.lora_B": (8, 4),
        },
        r"mlp\.router.* adapters of .* are served",
    ),
    "an expert": (
        {
            "model.layers.0.mlp.experts.3.up_proj.lora_A": (4, hidden),
            "model.layers.0.mlp.experts.3.up_proj.lora_B": (48, 4),
        },
        r"experts\.3\.up_proj.* not adapted here",
    ),
    "nothing": ({}, "changes no matrix"),
}


@pytest.mark.parametrize("name", list(broken))
def test_tensors_that_have_no_place_are_refused(name: str, tmp_path: Path) -> None:
    shapes, message = broken[name]
    with pytest.raises(ModelFileError, match=message):
        open_for(write_adapter(tmp_path / "adapter", shapes))


output_shapes: dict[str, tuple[int, ...]] = {
    "lm_head.lora_A": (4, hidden),
    "lm_head.lora_B": (vocab, 4),
}


def test_copies_of_what_was_not_trained_are_passed_over(tmp_path: Path) -> None:
    copies = {"lm_head.base_layer": (vocab, hidden), "model.embed_tokens": (vocab, hidden)}
    adapter = open_for(
        write_adapter(tmp_path / "a", output_shapes | copies, target_modules=["lm_head"])
    )
    assert [(part.target, part.layer) for part in adapter.parts] == [("output", no_layer)]


def test_a_changed_vocabulary_is_refused(tmp_path: Path) -> None:
    copies = {"model.embed_tokens": (vocab + 1, hidden)}
    with pytest.raises(ModelFileError, match="vocabulary was changed"):
        open_for(write_adapter(tmp_path / "a", output_shapes | copies, target_modules=["lm_head"]))


def test_a_rank_over_the_servers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="raise --max-lora-rank"):
        open_for(write_adapter(tmp_path / "adapter", rank=9), rank_max=8)


def test_a_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    one = open_for(write_adapter(tmp_path / "one"))
    same = open_for(write_adapter(tmp_path / "same"))
    other = open_for(write_adapter(tmp_path / "other", seed=9))
    assert one.digest == same.digest != other.digest
    assert one.parts[0].scale == 2.0


@pytest.mark.parametrize("name", ["", "a b", "-x", "a:b", "a" * 65])
def test_a_name_that_could_be_mistaken_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name an adapter"):
        check_adapter_name(name)
