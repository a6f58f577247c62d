"""Shapes of models by name, from their public configurations."""

from headrace.base.errors import NotFound
from headrace.control.planning.model_shape import Experts, LatentAttention, ModelShape

llama, apache, gemma = "Llama 3", "Apache-2.0", "Gemma"


def _llama(name: str, layers: int, hidden: int, heads: int, feed_forward: int) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, 8, 128, feed_forward, 128_256, licence=llama)


def _qwen(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    feed_forward: int,
    *,
    tied: bool = False,
) -> ModelShape:
    return ModelShape(
        *(name, layers, hidden, heads, 8, 128, feed_forward, 151_936),
        tied_embeddings=tied,
        context_max=40_960,
        licence=apache,
    )


def _gemma(
    name: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int, int],
    feed_forward: int,
    *,
    window: int = 1024,
) -> ModelShape:
    return ModelShape(
        *(name, layers, hidden, *heads, feed_forward, 262_144),
        tied_embeddings=True,
        window=window,
        window_layers=layers - layers // 6,  # five local ones before each global one
        context_max=32_768 if layers == 26 else 131_072,
        licence=gemma,
    )


def _gpt_oss(name: str, layers: int, experts: int) -> ModelShape:
    return ModelShape(
        *(name, layers, 2880, 64, 8, 64, 0, 201_088),
        experts=Experts(experts, 4, 2880),
        window=128,
        window_layers=layers // 2,
        native_precision="mxfp4",
        licence=apache,
    )


def _smollm2(
    name: str, layers: int, hidden: int, heads: tuple[int, int], feed_forward: int
) -> ModelShape:
    return ModelShape(
        *(name, layers, hidden, *heads, 64, feed_forward, 49_152),
        tied_embeddings=True,
        context_max=8192,
        licence=apache,
    )


shapes = (
    _llama("llama-3.1-8b", 32, 4096, 32, 14_336),
    _llama("llama-3.1-70b", 80, 8192, 64, 28_672),
    _llama("llama-3.1-405b", 126, 16_384, 128, 53_248),
    _qwen("qwen3-0.6b", 28, 1024, 16, 3072, tied=True),
    _qwen("qwen3-1.7b", 28, 2048, 16, 6144, tied=True),
    _qwen("qwen3-4b", 36, 2560, 32, 9728, tied=True),
    _qwen("qwen3-8b", 36, 4096, 32, 12_288),
    _qwen("qwen3-14b", 40, 5120, 40, 17_408),
    _qwen("qwen3-32b", 64, 5120, 64, 25_600),
    ModelShape(
        *("qwen3-30b-a3b", 48, 2048, 32, 4, 128, 0, 151_936),
        experts=Experts(128, 8, 768),
        context_max=40_960,
        licence=apache,
    ),
    ModelShape(
        *("qwen3-235b-a22b", 94, 4096, 64, 4, 128, 0, 151_936),
        experts=Experts(128, 8, 1536),
        context_max=40_960,
        licence=apache,
    ),
    ModelShape(
        *("deepseek-v3", 61, 7168, 128, 128, 128, 18_432, 129_280),
        experts=Experts(256, 8, 2048, shared=1, dense_layers=3),
        latent=LatentAttention(1536, 512, 128, 64, 128),
        context_max=163_840,
        native_precision="fp8",
        licence="MIT",
    ),
    _gpt_oss("gpt-oss-20b", 24, 32),
    _gpt_oss("gpt-oss-120b", 36, 128),
    ModelShape(
        *("mixtral-8x7b", 32, 4096, 32, 8, 128, 0, 32_000),
        experts=Experts(8, 2, 14_336),
        context_max=32_768,
        licence=apache,
    ),
    ModelShape(
        *("mixtral-8x22b", 56, 6144, 48, 8, 128, 0, 32_768),
        experts=Experts(8, 2, 16_384),
        context_max=65_536,
        licence=apache,
    ),
    _gemma("gemma-3-1b", 26, 1152, (4, 1, 256), 6912, window=512),
    _gemma("gemma-3-4b", 34, 2560, (8, 4, 256), 10_240),
    _gemma("gemma-3-12b", 48, 3840, (16, 8, 256), 15_360),
    _gemma("gemma-3-27b", 62, 5376, (32, 16, 128), 21_504),
    _smollm2("smollm2-135m", 30, 576, (9, 3), 1536),
    _smollm2("smollm2-360m", 32, 960, (15, 5), 2560),
    _smollm2("smollm2-1.7b", 24, 2048, (32, 32), 8192),
)
suffixes = ("-instruct", "-it", "-base", "-chat")


def find_shape(name: str) -> ModelShape:
    """The shape of a model by its name, however cased, also as a tuned variant of it.

    NotFound lists the names."""
    wanted = name.lower().rpartition("/")[2].replace("meta-", "").replace("llama-3-", "llama-3.1-")
    for suffix in suffixes:
        wanted = wanted.removesuffix(suffix)
    for shape in shapes:
        if shape.name == wanted:
            return shape
    names = ", ".join(shape.name for shape in shapes)
    raise NotFound(
        f"no shape of {name!r} is known; give the path of its config.json, or one of: {names}",
        param="model",
    )
