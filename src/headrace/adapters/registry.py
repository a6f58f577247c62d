"""Every adapter by the name that deployments call it."""

from collections.abc import Mapping

from headrace.adapters import (
    anthropic,
    kserve,
    llama_cpp,
    lm_studio,
    managed,
    ollama,
    openvino,
    sglang,
    tensorrt_llm,
    tgi,
    transformers,
    triton,
    triton_generate,
    vllm,
)
from headrace.adapters.headrace import HeadraceAdapter
from headrace.adapters.protocol import EngineAdapter
from headrace.base.errors import InvalidRequest

all_adapters: tuple[EngineAdapter, ...] = (
    HeadraceAdapter(),
    llama_cpp.adapter,
    vllm.adapter,
    sglang.adapter,
    tensorrt_llm.adapter,
    tgi.adapter,
    transformers.adapter,
    ollama.adapter,
    lm_studio.adapter,
    openvino.adapter,
    triton.adapter,
    triton_generate.vllm,
    triton_generate.tensorrt_llm,
    kserve.adapter,
    managed.adapter,
    managed.openai,
    anthropic.adapter,
)
_by_name: Mapping[str, EngineAdapter] = {adapter.name: adapter for adapter in all_adapters}


def find_adapter(name: str) -> EngineAdapter:
    """The adapter of that name; InvalidRequest lists those that exist."""
    adapter = _by_name.get(name)
    if adapter is None:
        raise InvalidRequest(
            f"There is no engine {name!r}; choose one of {', '.join(sorted(_by_name))}.",
            param="engine",
        )
    return adapter
