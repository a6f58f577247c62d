"""Tensors as the runner wants them: one matrix a name, whatever a family's files fuse.

Fused matrices (Phi-3's queries, keys and values; gates beside ups; experts in one block) are cut
along their outputs, where a quantized matrix can be cut without touching a byte: nothing is copied.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from headrace.base.errors import ModelFileError
from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.families import families
from headrace.weights.tensor import Bytes, Tensor

Shapes = dict[str, tuple[int, ...]]
# Divisors of rotations are read by headrace.kernels.rotation.
divisor_names = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
biased_names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def runner_tensors(spec: ArchitectureSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A file's tensors under the runner's names; ModelFileError if a fused one has other sizes."""
    return {part.name: part for tensor in tensors.values() for part in _parts(spec, tensor)}


def required_shapes(spec: ArchitectureSpec) -> Shapes:
    """Name and shape of every tensor that a model of this spec has; matrices (outputs, inputs)."""
    hidden = spec.hidden_size
    shapes: Shapes = {"token_embd.weight": (spec.vocab_size, hidden)}
    if spec.encoder:
        shapes |= {
            "position_embd.weight": (spec.context_length, hidden),
            "token_types.weight": (1, hidden),
            **_norm(spec, "token_embd_norm"),
        }
    else:
        shapes |= _norm(spec, "output_norm")
        if not spec.tied_output:
            shapes["output.weight"] = (spec.vocab_size, hidden)
    layer = _layer_shapes(spec)
    for index in range(spec.num_layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def optional_shapes(spec: ArchitectureSpec) -> Shapes:
    """Tensors that are computed with where a file has them: biases, divisors of rotations."""
    pairs = (spec.rope_dimensions // 2,)
    shapes: Shapes = dict.fromkeys(divisor_names, pairs)
    matrices = {
        name.removesuffix(".weight"): shape
        for name, shape in _layer_shapes(spec).items()
        if len(shape) == 2
    }
    for index in range(spec.num_layers):
        for name, shape in matrices.items():
            shapes[f"blk.{index}.{name}.bias"] = (shape[0],)
    return shapes


def _layer_shapes(spec: ArchitectureSpec) -> Shapes:
    hidden = spec.hidden_size
    queries, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: Shapes = {
        "attn_q.weight": (queries, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, queries),
    }
    match spec.norm_placement:
        case "before":
            norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
        case "both":
            norms = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
        case "branch":
            norms = ("post_attention_norm", "post_ffw_norm")
        case _:
            norms = ("attn_output_norm", "layer_output_norm")
    for name in norms:
        shapes |= _norm(spec, name)
    if spec.query_key_norm != "none":
        whole = spec.query_key_norm == "whole"
        shapes["attn_q_norm.weight"] = (queries if whole else spec.head_dim,)
        shapes["attn_k_norm.weight"] = (kv if whole else spec.head_dim,)
    if spec.attention_sinks:
        shapes["attn_sinks.weight"] = (spec.num_heads,)
    return shapes | _feed_forward_shapes(spec)


def _feed_forward_shapes(spec: ArchitectureSpec) -> Shapes:
    if not spec.expert_count:
        return _network(spec, "", spec.ffn_size)
    shapes: Shapes = {"ffn_gate_inp.weight": (spec.expert_count, spec.hidden_size)}
    for expert in range(spec.expert_count):
        shapes |= _network(spec, f".{expert}", spec.expert_ffn_size)
    if spec.shared_expert_ffn_size:
        shapes |= _network(spec, "_shexp", spec.shared_expert_ffn_size)
    if spec.shared_expert_gated:
        shapes["ffn_gate_inp_shexp.weight"] = (spec.hidden_size,)
    return shapes


def _network(spec: ArchitectureSpec, suffix: str, ffn_size: int) -> Shapes:
    shapes: Shapes = {
        f"ffn_up{suffix}.weight": (ffn_size, spec.hidden_size),
        f"ffn_down{suffix}.weight": (spec.hidden_size, ffn_size),
    }
    if spec.gated:
        shapes[f"ffn_gate{suffix}.weight"] = (ffn_size, spec.hidden_size)
    return shapes


def _norm(spec: ArchitectureSpec, name: str) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (spec.hidden_size,)}
    if spec.layer_norm:
        shapes[f"{name}.bias"] = (spec.hidden_size,)
    return shapes


def _parts(spec: ArchitectureSpec, tensor: Tensor) -> Iterator[Tensor]:
    if tensor.name == "token_types.weight":
        yield _rows(tensor, tensor.name, 0, 1)  # texts are of the first type
        return
    if not tensor.name.startswith("blk."):
        yield tensor
        return
    layer, _, rest = tensor.name.removeprefix("blk.").partition(".")
    name, _, kind = rest.partition(".")
    name = families[spec.family].tensor_names.get(name, name)
    prefix = f"blk.{layer}."
    queries, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    if name == "attn_qkv":
        sizes = {"attn_q": queries, "attn_k": kv, "attn_v": kv}
    elif name == "ffn_up" and tensor.shape[0] == 2 * spec.ffn_size and spec.gated:
        sizes = {"ffn_gate": spec.ffn_size, "ffn_up": spec.ffn_size}
    elif name.endswith("_exps"):
        yield from _experts(tensor, prefix + name.removesuffix("_exps"), kind)
        return
    else:
        yield replace(tensor, name=f"{prefix}{name}.{kind}")
        return
    if sum(sizes.values()) != tensor.shape[0]:
        raise ModelFileError(
            f"tensor {tensor.name} has {tensor.shape[0]} outputs where the metadata asks for "
            f"{sum(sizes.values())}.",
            field=f"tensor {tensor.name}",
        )
    first = 0
    for part, size in sizes.items():
        yield _rows(tensor, f"{prefix}{part}.{kind}", first, first + size)
        first += size


def _experts(tensor: Tensor, prefix: str, kind: str) -> Iterator[Tensor]:
    for expert in range(tensor.shape[0]):
        part = _rows(tensor, f"{prefix}.{expert}.{kind}", expert, expert + 1)
        yield replace(part, shape=tensor.shape[1:])


def _rows(tensor: Tensor, name: str, first: int, end: int) -> Tensor:
    """A tensor's outputs [first, end) as a tensor of their own, over the same bytes."""
    start_byte, end_byte = first * tensor.row_bytes, end * tensor.row_bytes

    def cut() -> Bytes:
        return tensor.data[start_byte:end_byte]

    shape = (end - first, *tensor.shape[1:])
    return Tensor(name, tensor.type, shape, cut if callable(tensor.source) else cut())
