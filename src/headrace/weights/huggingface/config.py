"""From config.json to the keys that a GGUF file has, so that one reader checks both.

Configurations of before and after transformers 5 are read: `rope_theta` beside `rope_scaling`, or
both inside `rope_parameters`, by kind of layer where these differ (Gemma 3).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

from headrace.base.errors import ModelFileError
from headrace.weights.architecture import Activation
from headrace.weights.architecture_reader import head_dim_max, layers_max
from headrace.weights.families import Family, family_of_model_type

Config: TypeAlias = Mapping[str, object]
activations = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "gelu": Activation.GELU,
}
# Our key (after the family's name) <- the configuration's, where a number is taken as it is.
plain_numbers = {
    "block_count": ("num_hidden_layers",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size",),
    "context_length": ("max_position_embeddings",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps",),
    "attention.scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_weights_norm": ("norm_topk_prob",),
}
most = 1e300  # of a number, past any model's: what is computed with it stays finite
least_context = 2
# Which layers have a window where a configuration does not list them, of those that say one number.
window_layers: Mapping[str, Callable[[int, int], bool]] = {
    "qwen2": lambda layer, limit: layer >= limit,
    "qwen3": lambda layer, limit: layer >= limit,
    "qwen2moe": lambda layer, limit: layer % 2 == 0 and layer < limit,
}
# What is computed in one way alone; a configuration may leave it out.
fixed_settings: Config = {"use_bidirectional_attention": False, "swiglu_limit": 7.0}
softcaps = ("attn_logit_softcapping", "final_logit_softcapping")
# What transformers takes where a configuration is silent: the part for text of a model of text and
# images is written without what is usual.
usual_numbers: Mapping[str, Config] = {
    "gemma3_text": {
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
        **{"max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "rope_theta": 1e6},
        **{"query_pre_attn_scalar": 256, "sliding_window": 4096, "vocab_size": 262_208},
    },
}


@dataclass(frozen=True, slots=True)
class ConfigReading:
    """What a config.json says, in GGUF's terms."""

    family: Family
    metadata: dict[str, object]
    rope_divisors: Mapping[str, list[float]]  # tensors that GGUF files have for it


def read_config(config: Config, path: Path) -> ConfigReading:
    """Translate a configuration; ModelFileError names what headrace does not compute."""
    reader = _Reader(text_part(config), path)
    model_type = reader.config.get("model_type")
    family = family_of_model_type(str(model_type))
    if family is None:
        reader.fail("model_type", f"{model_type!r} is not a family that headrace computes")
    metadata: dict[str, object] = {"general.architecture": family.name}
    for key, names in plain_numbers.items():
        value = next((reader.config[name] for name in names if name in reader.config), None)
        if value is not None:
            metadata[f"{family.name}.{key}"] = value
    if family.name == "gpt-oss":
        dense = f"{family.name}.feed_forward_length"
        metadata[f"{family.name}.expert_feed_forward_length"] = metadata.get(dense)
    for name in softcaps:
        if name in reader.config:
            metadata[f"{family.name}.{name}"] = reader.config[name] or 0.0
    reader.check_kind(family)
    metadata |= reader.layers(family)
    rope, divisors = reader.rope(family)
    metadata |= rope
    scale = reader.number("query_pre_attn_scalar", 0.0)
    if scale:
        metadata[f"{family.name}.attention.scale"] = scale**-0.5
    if family.encoder:
        metadata[f"{family.name}.vocab_size"] = reader.config.get("vocab_size")
    return ConfigReading(family, metadata, divisors)


def text_part(config: Config) -> Config:
    """The language model's configuration, which one of text and images has inside, completed."""
    inner = config.get("text_config")
    part: Config = inner if isinstance(inner, dict) else config
    return {**usual_numbers.get(str(part.get("model_type")), {}), **part}


class _Reader:
    """A configuration with checks that name its keys."""

    def __init__(self, config: Config, path: Path) -> None:
        self.config = config
        self._path = path

    def fail(self, key: str, problem: str) -> NoReturn:
        raise ModelFileError(f"{self._path}: {key}: {problem}.", file=str(self._path), field=key)

    def number(self, key: str, default: float, within: Config | None = None) -> float:
        value = (self.config if within is None else within).get(key)
        if value is None:
            return default
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not -most <= value <= most
        ):
            self.fail(key, "is not a number")
        return float(value)

    def positive(self, key: str, default: float, within: Config) -> float:
        value = self.number(key, default, within)
        if value <= 0:
            self.fail(key, f"{value:g} is not positive")
        return value

    def integer(self, key: str, limit: float = most) -> int:
        value = self.number(key, 0.0)
        if value != int(value) or value < 1:
            self.fail(key, f"{value:g} is not a count")
        if value > limit:
            self.fail(key, f"{value:g} is over {limit:g}")
        return int(value)

    def check_kind(self, family: Family) -> None:
        """Refuse what the family's own steps do not compute."""
        name = self.config.get("hidden_activation") or self.config.get("hidden_act")
        known = activations.get(str(name))
        wanted = Activation.SILU if family.sinks else family.activation
        if name is not None and known is not wanted:
            self.fail("hidden_act", f"{name!r} in a {family.name} model is not supported")
        sparse = self.integer("decoder_sparse_step") if "decoder_sparse_step" in self.config else 1
        if sparse != 1 or self.config.get("mlp_only_layers"):
            self.fail(
                "decoder_sparse_step", "layers without experts among others are not supported"
            )
        for key, only in fixed_settings.items():
            if self.config.get(key) not in (None, only):
                self.fail(key, f"{self.config[key]!r} is not supported; {only!r} is")
        position = self.config.get("position_embedding_type", "absolute")
        if family.encoder and position != "absolute":
            self.fail("position_embedding_type", f"{position!r} is not supported")

    def layers(self, family: Family) -> dict[str, object]:
        """Which layers have a window, and which are rotated."""
        count = self.integer("num_hidden_layers", layers_max)
        found: dict[str, object] = {}
        window = self.config.get("sliding_window")
        kinds = self.config.get("layer_types")
        used = bool(self.config.get("use_sliding_window", not family.name.startswith("qwen")))
        flags: list[bool] | None = None
        period = "sliding_window_pattern"  # how Gemma 3 said it before there were lists
        if isinstance(kinds, list):
            flags = [kind == "sliding_attention" for kind in kinds]
        elif family.window_period > 1 and period in self.config:
            each = self.integer(period)
            flags = [(layer + 1) % each > 0 for layer in range(count)]
        elif used and family.name in window_layers:
            limit = int(self.number("max_window_layers", 28.0))
            flags = [window_layers[family.name](layer, limit) for layer in range(count)]
        if flags is not None:
            used = any(flags)
            found[f"{family.name}.attention.sliding_window_pattern"] = flags
        if window is not None and used:
            found[f"{family.name}.attention.sliding_window"] = window
        rotated = self.config.get("no_rope_layers")
        if isinstance(rotated, list) and len(rotated) == count:
            found[f"{family.name}.rope.layers"] = [bool(flag) for flag in rotated]
        return found

    def rope(self, family: Family) -> tuple[dict[str, object], dict[str, list[float]]]:
        """Rotation and its scaling; lists of divisors become tensors."""
        if family.encoder:
            return {}, {}
        parameters = self._rope_parameters()
        local = parameters.get("sliding_attention")
        main = parameters.get("full_attention", parameters)
        if not isinstance(main, dict):
            self.fail("full_attention", "is not a JSON object")
        theta = self.positive("rope_theta", self.number("rope_theta", 10_000.0), main)
        partial = self.number("partial_rotary_factor", 1.0)
        partial = self.number("partial_rotary_factor", partial, main)
        heads = self.integer("num_attention_heads")
        head_dim = int(self.number("head_dim", self.integer("hidden_size") // heads))
        turned = head_dim * partial
        if not 1 <= turned <= head_dim_max:
            self.fail("head_dim", f"{turned:g} turned values are not 1 to {head_dim_max}")
        dimensions = int(turned)
        prefix = f"{family.name}.rope."
        found: dict[str, object] = {
            f"{prefix}freq_base": theta,
            f"{prefix}dimension_count": dimensions,
        }
        if isinstance(local, dict):
            found[f"{prefix}freq_base_swa"] = self.number("rope_theta", 10_000.0, local)
        elif "rope_local_base_freq" in self.config:
            found[f"{prefix}freq_base_swa"] = self.number("rope_local_base_freq", 10_000.0)
        kind = str(main.get("rope_type", main.get("type", "default")))
        scaling, divisors = self._scaling(family, kind, main, theta, dimensions)
        found |= {f"{prefix}scaling.{key}": value for key, value in scaling.items()}
        return found, divisors

    def _rope_parameters(self) -> Config:
        for key in ("rope_parameters", "rope_scaling"):
            value = self.config.get(key)
            if isinstance(value, dict):
                return value
        return {}

    def _scaling(
        self, family: Family, kind: str, rope: Config, theta: float, dimensions: int
    ) -> tuple[dict[str, object], dict[str, list[float]]]:
        context = self.integer("max_position_embeddings")
        given = self.number("original_max_position_embeddings", context)
        original = int(self.number("original_max_position_embeddings", given, rope))
        if original < least_context:
            self.fail("original_max_position_embeddings", f"{original} is no context's length")
        usual = context / original if kind in ("yarn", "longrope", "su") else 1.0
        factor = self.positive("factor", usual, rope)
        match kind:
            case "linear":
                return {"type": "linear", "factor": factor}, {}
            case "dynamic":
                # No type: llama.cpp ends at one that it does not know, and reads the original
                # context as it is, which is right for as long as a text fits it.
                return {"dynamic_factor": factor, "original_context_length": context}, {}
            case "llama3":
                return {}, {"rope_freqs.weight": self._llama3(rope, theta, dimensions, original)}
            case "yarn":
                return self._yarn(family, rope, factor, original), {}
            case "longrope" | "su":
                return self._longrope(rope, factor, original, dimensions)
        if kind != "default":
            self.fail("rope_scaling", f"{kind!r} is not supported")
        return {}, {}

    def _llama3(self, rope: Config, theta: float, dimensions: int, original: int) -> list[float]:
        factor = self.positive("factor", 8.0, rope)
        low = self.positive("low_freq_factor", 1.0, rope)
        high = self.positive("high_freq_factor", 4.0, rope)
        if high <= low:
            self.fail("high_freq_factor", f"{high:g} is not above low_freq_factor, {low:g}")
        divisors = []
        for pair in range(dimensions // 2):
            wavelength = 2 * math.pi * theta ** (2 * pair / dimensions)
            if wavelength < original / high:
                divisors.append(1.0)
            elif wavelength > original / low:
                divisors.append(factor)
            else:
                smooth = (original / wavelength - low) / (high - low)
                divisors.append(1 / ((1 - smooth) / factor + smooth))
        return divisors

    def _yarn(
        self, family: Family, rope: Config, factor: float, original: int
    ) -> dict[str, object]:
        if bool(rope.get("truncate", True)) is not family.yarn_whole_pairs:
            self.fail("truncate", f"{rope.get('truncate')} is not supported for {family.name}")
        usual = given = _magnitude(factor)
        scales = [self.number(key, 0.0, rope) for key in ("mscale", "mscale_all_dim")]
        if all(scales):
            given = _magnitude(factor, scales[0]) / _magnitude(factor, scales[1])
        return {
            "type": "yarn",
            "factor": factor,
            "original_context_length": original,
            "attn_factor": self.number("attention_factor", given, rope) / usual,
            "yarn_beta_fast": self.number("beta_fast", 32.0, rope) or 32.0,
            "yarn_beta_slow": self.number("beta_slow", 1.0, rope) or 1.0,
        }

    def _longrope(
        self, rope: Config, factor: float, original: int, dimensions: int
    ) -> tuple[dict[str, object], dict[str, list[float]]]:
        usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        # The factor is in the divisors; llama.cpp would divide by it once more.
        found: dict[str, object] = {
            "type": "longrope",
            "original_context_length": original,
            "attn_factor": self.number("attention_factor", usual, rope),
        }
        divisors: dict[str, list[float]] = {}
        for name in ("long", "short"):
            values = rope.get(f"{name}_factor")
            if not isinstance(values, list) or len(values) != dimensions // 2:
                self.fail(f"{name}_factor", f"is not a list of {dimensions // 2} numbers")
            divisors[f"rope_factors_{name}.weight"] = [
                self.positive(f"{name}_factor", 1.0, {f"{name}_factor": value}) for value in values
            ]
        return found, divisors


def _magnitude(factor: float, scale: float = 1.0) -> float:
    """What YaRN multiplies cosines and sines with."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
