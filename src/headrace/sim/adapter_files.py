"""LoRA adapters of random numbers, in PEFT's layout, for tests of what serves them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from headrace.kernels.architecture import ArchitectureSpec


def write_adapter(directory: Path, spec: ArchitectureSpec, *, seed: int, rank: int = 4) -> Path:
    """An adapter of the queries and the output of attention; big enough to change answers."""
    rng = np.random.default_rng(seed)
    hidden, queries = spec.hidden_size, spec.num_heads * spec.head_dim
    shapes = {"q_proj": (queries, hidden), "o_proj": (hidden, queries)}
    tensors = {}
    for layer in range(spec.num_layers):
        for module, (outputs, inputs) in shapes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            down, up = rng.normal(size=(rank, inputs)), rng.normal(size=(outputs, rank))
            tensors[f"{prefix}.lora_A.weight"] = down.astype(np.float32)
            tensors[f"{prefix}.lora_B.weight"] = up.astype(np.float32)
    directory.mkdir(parents=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(shapes),
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory
