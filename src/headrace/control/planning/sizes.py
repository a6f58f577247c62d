"""Bytes of weights, of KV, and of what a step needs beside them.

weights    embeddings, attention and dense parts, experts, each at its bits
KV         layers x 2 x KV heads x head width a token; windowed layers keep a window only;
           latent attention keeps one vector a layer
workspace  a step's activations, its logits in float32, and what every process holds
"""

from dataclasses import dataclass

from headrace.control.planning.device import Device, gib
from headrace.control.planning.model_shape import ModelShape
from headrace.control.planning.precision import Precision

block_tokens = 16
step_tokens = 8192  # prompt tokens in a step, as engines for such devices default to
cpu_step_tokens = 512
process_bytes = int(1.2 * gib)  # runtime, compiled graphs, communication buffers
cpu_process_bytes = int(0.15 * gib)
activation_copies = 4  # of a row's hidden state that live at once


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a model."""

    context_tokens: int
    concurrency: int
    kv_bits: float = 16


def weight_bytes(shape: ModelShape, precision: Precision) -> int:
    """All weights of one copy."""
    bits = (
        shape.embedding_parameters * precision.embedding_bits
        + (shape.attention_parameters + shape.dense_parameters) * precision.matrix_bits
        + shape.expert_parameters * precision.expert_bits
    )
    return round(bits / 8)


def kv_bytes_of_sequence(shape: ModelShape, context_tokens: int, bits: float) -> int:
    """The KV of one sequence at its full context."""
    if shape.latent is not None:
        width = shape.latent.cached_width
    else:
        width = 2 * shape.kv_heads * shape.head_dim
    full_layers = shape.layers - shape.window_layers
    kept = full_layers * in_blocks(context_tokens)
    if shape.window is not None:
        kept += shape.window_layers * in_blocks(min(context_tokens, shape.window))
    return round(kept * width * bits / 8)


def in_blocks(tokens: int) -> int:
    """Tokens rounded up to whole blocks."""
    return -(-tokens // block_tokens) * block_tokens


def workspace_bytes(shape: ModelShape, demand: Demand, device: Device, tensor_parallel: int) -> int:
    """What one device needs beside weights and KV."""
    rows = min(
        cpu_step_tokens if device.is_cpu else step_tokens,
        max(demand.context_tokens, demand.concurrency),
    )
    experts = shape.experts
    width = shape.feed_forward if experts is None else experts.active * experts.width
    attention = shape.heads * shape.head_dim
    inner = max(2 * width, 3 * attention) / tensor_parallel
    activations = rows * 2 * (activation_copies * shape.hidden + inner)
    logits = 2 * 4 * min(demand.concurrency, 1024) * shape.vocabulary / tensor_parallel
    fixed = cpu_process_bytes if device.is_cpu else process_bytes
    return round(activations + logits) + fixed
