"""The shape that a model's public `config.json` implies; the names are those of Transformers."""

from pathlib import Path

import msgspec

from headrace.base.errors import ModelFileError
from headrace.control.planning.model_shape import Experts, LatentAttention, ModelShape

config_bytes_max = 1 << 20


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that matter, under the names that families give them."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 0
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 131_072
    sliding_window: int | None = None
    layer_types: tuple[str, ...] = ()
    num_experts: int | None = None  # Qwen
    num_local_experts: int | None = None  # Mixtral, gpt-oss
    n_routed_experts: int | None = None  # DeepSeek
    n_shared_experts: int = 0
    first_k_dense_replace: int = 0
    num_experts_per_tok: int = 1
    moe_intermediate_size: int | None = None
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0


class Wrapper(msgspec.Struct, frozen=True):
    """A configuration of several modalities holds the text part inside."""

    text_config: msgspec.Raw | None = None


def read_config(path: Path) -> ModelShape:
    """The shape in a config.json, or in the one of a directory.

    ModelFileError if it cannot be read or lacks a field."""
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            content = stream.read(config_bytes_max)
        inner = msgspec.json.decode(content, type=Wrapper).text_config
        config = msgspec.json.decode(content if inner is None else inner, type=Config)
    except OSError as error:
        raise ModelFileError(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ModelFileError(f"{file} is no configuration of a transformer: {error}") from None
    return shape_of(config, file.absolute().parent.name)


def shape_of(config: Config, name: str) -> ModelShape:
    """A configuration as a shape."""
    heads = config.num_attention_heads
    experts = experts_of(config)
    has_dense = experts is None or experts.dense_layers > 0
    windows = sum(kind == "sliding_attention" for kind in config.layer_types)
    return ModelShape(
        name=name,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=config.head_dim or config.hidden_size // heads,
        feed_forward=config.intermediate_size if has_dense else 0,
        vocabulary=config.vocab_size,
        tied_embeddings=config.tie_word_embeddings,
        experts=experts,
        latent=latent_of(config),
        window=config.sliding_window if windows else None,
        window_layers=windows,
        context_max=config.max_position_embeddings,
    )


def experts_of(config: Config) -> Experts | None:
    """The mixture of experts, if there is one."""
    count = config.num_experts or config.num_local_experts or config.n_routed_experts
    if not count:
        return None
    return Experts(
        count=count,
        active=config.num_experts_per_tok,
        width=config.moe_intermediate_size or config.intermediate_size,
        shared=config.n_shared_experts,
        dense_layers=config.first_k_dense_replace,
    )


def latent_of(config: Config) -> LatentAttention | None:
    """The latent attention, if there is one."""
    if config.kv_lora_rank is None:
        return None
    return LatentAttention(
        query_rank=config.q_lora_rank or config.hidden_size,
        kv_rank=config.kv_lora_rank,
        key_dim=config.qk_nope_head_dim,
        rotated_dim=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
    )
