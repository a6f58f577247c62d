"""The probe of a load: a model reads a few words before anyone may ask it, and passes once.

A model that passed is remembered in the cache by its digest and the layout of its packed weights,
so that it is not read again. docs/decisions/0073.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from headrace.base.clock import Clock
from headrace.base.errors import ModelFileError, SourceError
from headrace.engine.core import EngineCore
from headrace.engine.intake import context_limit
from headrace.engine.load_probe import (
    check_tokens,
    is_noise,
    noise_text,
    probe,
    probe_tokens_max,
    short_tokens,
)
from headrace.engine.runner import RunnerInfo
from headrace.engine_server.messages import EngineConfig
from headrace.kernels import packed_layout
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.cache import ModelCache, check_prefix, key_of
from headrace.weights.model_file import open_model

load_share = 0.1  # of the time that loading took
budget_s_min = 0.25
probe_text = (
    "A headrace is the channel that leads water from a river to the wheel of a mill. The miller "
    "opens a gate in the morning, and the water runs along the channel, falls on the wheel and "
    "turns it. Behind the wheel it leaves by another channel, which is called the tailrace, and "
    "returns to the river below the weir."
)


def probe_load(
    config: EngineConfig, core: EngineCore, info: RunnerInfo, clock: Clock, load_s: float
) -> list[str]:
    """What to tell of a loaded model; nothing of one that passes, or that passed before.

    ModelFileError if its numbers or its tokens are none, or if it is noise and that is to be
    refused."""
    wanted = config.load_probe
    if wanted is None:
        return []
    cache = ModelCache(Path(wanted.cache_dir))
    key = key_of(f"probe\0{wanted.sha256}\0{packed_layout()}")
    if cache.find(key) is not None:
        return []
    room = context_limit(info) - 1  # of which an output would have one
    tokens = _tokens(config)[: min(probe_tokens_max, room)]
    check_tokens(tokens, info.vocab_size)
    if len(tokens) < short_tokens:  # fewer say more of the tokens than of the model
        return []
    found = probe(core, clock, tokens, max(budget_s_min, load_share * load_s))
    if not is_noise(found.perplexity, info.vocab_size):
        with contextlib.suppress(SourceError):  # a cache that takes nothing: probed each time
            cache.remember(key, f"{check_prefix}{config.model_path}", wanted.sha256)
        return []
    text = noise_text(found.perplexity, info.vocab_size)
    if wanted.refuses_noise:
        raise ModelFileError(f"{text} --load-checks warn serves it all the same.", field="weights")
    return [f"warning: {text}"]


def _tokens(config: EngineConfig) -> Sequence[int]:
    with open_model(Path(config.model_path)) as file:
        return Tokenizer.from_gguf_metadata(file.metadata).encode(probe_text, add_special=True)
