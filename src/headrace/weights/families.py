"""The model families that headrace computes: what is fixed for each, by GGUF architecture name.

`architecture_reader` puts this together with a file's own numbers. A family is a value here; a new
kind of step (another norm, another gate) is a new field of `ArchitectureSpec`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.weights.architecture import Activation, NormPlacement, QueryKeyNorm, RopeStyle


@dataclass(frozen=True, slots=True)
class Family:
    """One GGUF architecture."""

    name: str  # general.architecture
    models: str  # for people
    model_types: tuple[str, ...]  # config.json's model_type of the same
    rope_style: RopeStyle = RopeStyle.HALVES
    norm_placement: NormPlacement = NormPlacement.BEFORE
    layer_norm: bool = False
    query_key_norm: QueryKeyNorm = QueryKeyNorm.NONE
    activation: Activation = Activation.SILU
    gated: bool = True
    embedding_by_root: bool = False  # embeddings times the root of hidden_size
    window_period: int = 1  # layers i with i % period < period - 1 have a window; 1: all
    unrotated_period: int = 0  # layers i with (i + 1) % period == 0 are not rotated; 0: none
    local_rope_theta: float = 0.0  # of the layers with a window, where they have their own
    yarn_whole_pairs: bool = True
    sinks: bool = False
    encoder: bool = False
    experts: bool = False  # every layer's network is one of experts
    experts_normalized: bool = True
    experts_shared: bool = False
    attention_softcap: float = 0.0  # where the file does not say, as in the next
    logit_softcap: float = 0.0
    tensor_names: Mapping[str, str] = field(default_factory=dict)  # the file's -> ours


_listed = (
    Family(
        "llama",
        "Llama 1 to 3.x, Mistral, Mixtral, SmolLM2",
        ("llama", "mistral", "mixtral"),
        rope_style=RopeStyle.ADJACENT,
    ),
    Family("qwen2", "Qwen2, Qwen2.5", ("qwen2",)),
    Family("qwen3", "Qwen3", ("qwen3",), query_key_norm=QueryKeyNorm.HEAD),
    Family(
        "qwen2moe",
        "Qwen1.5-MoE, Qwen2-MoE",
        ("qwen2_moe",),
        experts=True,
        experts_normalized=False,
        experts_shared=True,
    ),
    Family("qwen3moe", "Qwen3-MoE", ("qwen3_moe",), query_key_norm=QueryKeyNorm.HEAD, experts=True),
    Family(
        "gemma",
        "Gemma 1",
        ("gemma",),
        activation=Activation.GELU_TANH,
        embedding_by_root=True,
    ),
    Family(
        "gemma2",
        "Gemma 2",
        ("gemma2",),
        norm_placement=NormPlacement.BOTH,
        activation=Activation.GELU_TANH,
        embedding_by_root=True,
        window_period=2,
        attention_softcap=50.0,
        logit_softcap=30.0,
    ),
    Family(
        "gemma3",
        "Gemma 3 (text)",
        ("gemma3_text", "gemma3"),
        norm_placement=NormPlacement.BOTH,
        query_key_norm=QueryKeyNorm.HEAD,
        activation=Activation.GELU_TANH,
        embedding_by_root=True,
        window_period=6,
        local_rope_theta=10_000.0,
    ),
    Family("phi3", "Phi-3, Phi-3.5, Phi-4, Phi-4-mini", ("phi3",)),
    Family("smollm3", "SmolLM3", ("smollm3",), rope_style=RopeStyle.ADJACENT, unrotated_period=4),
    Family("granite", "Granite 3.x", ("granite",), rope_style=RopeStyle.ADJACENT),
    Family(
        "olmo2",
        "OLMo 2",
        ("olmo2",),
        norm_placement=NormPlacement.BRANCH,
        query_key_norm=QueryKeyNorm.WHOLE,
    ),
    Family(
        "gpt-oss",
        "gpt-oss",
        ("gpt_oss",),
        activation=Activation.SILU_CLAMPED,
        window_period=2,
        yarn_whole_pairs=False,
        sinks=True,
        experts=True,
        tensor_names={"post_attention_norm": "ffn_norm"},
    ),
    Family(
        "bert",
        "BERT-shaped encoders: MiniLM, BGE, E5",
        ("bert",),
        norm_placement=NormPlacement.AFTER,
        layer_norm=True,
        activation=Activation.GELU,
        gated=False,
        encoder=True,
    ),
)

families: Mapping[str, Family] = {family.name: family for family in _listed}


def family_of_model_type(model_type: str) -> Family | None:
    """The family of a config.json's model_type, if headrace computes it."""
    for family in _listed:
        if model_type in family.model_types:
            return family
    return None
