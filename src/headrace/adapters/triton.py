"""NVIDIA Triton's OpenAI frontend, as far as headrace must know it.

`model_path` is a model repository; the served name is a model's in it. The vLLM backend's metrics
come with Triton's own at /metrics of the same port; other backends tell pending requests alone.

Known traps:

* up to 2026-01: every failure of a request is 400 with `detail`, the engine's own among them. ->
  400 is taken as the caller's; what Triton says of itself in it reaches the caller, so keep paths
  out of model names.
* all read: "not ready" is 400 at /health/ready, not 503. -> Read as loading.
* all read: the server waits for all models before the frontend listens. -> No answer is LOADING.
* all read: no key unless `--openai-restricted-api` names one, which `ps` would show. -> No key; it
  listens where only gateways reach it.
* all read: a chat template needs `--tokenizer`, a path or a name. -> Give it in the engine
  arguments if it is not in the model's directory.
* all read: parallelism, context and quantization are in the repository's files, not options. ->
  Not passed.
* by its documents: KServe's v2 protocol and its `generate` extension, at a port of their own, take
  prompts as text and have no chats. -> The OpenAI frontend is asked; `triton_vllm` and
  `triton_tensorrt_llm` speak the other.
* not verified: usage in streams. -> Asked for; without it what passed is counted.
"""

from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.load_metrics import LoadMetrics
from headrace.adapters.openai_compatible import (
    OpenAICompatible,
    ReadyAnswers,
    empty_body,
    no_key,
)
from headrace.adapters.protocol import LaunchCommand, LaunchRequest
from headrace.adapters.vllm import context_patterns

program = ("python3", "/opt/tritonserver/python/openai/openai_frontend/main.py")

platform_options = frozenset(("--host", "--openai-port", "--model-repository"))

metrics = LoadMetrics(
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting", "nv_inference_pending_request_count"),
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    prompt_tokens=("vllm:prompt_tokens_total",),
    completion_tokens=("vllm:generation_tokens_total",),
    preemptions=("vllm:num_preemptions_total",),
)


def build(request: LaunchRequest) -> LaunchCommand:
    """One frontend with its server inside."""
    return LaunchCommand(
        (
            *(*program, "--model-repository", request.model_path),
            *("--host", request.host, "--openai-port", str(request.port)),
        ),
        {} if request.threads is None else {"OMP_NUM_THREADS": str(request.threads)},
    )


adapter = OpenAICompatible(
    name="triton",
    facts=EngineFacts(
        title="NVIDIA Triton (OpenAI frontend)",
        start=Start.PROCESS,
        evidence=Evidence.REPLAYED,
        version_read="openai_frontend of 2025 and 2026-01",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.COMPLETIONS, Ability.EMBEDDINGS, Ability.TOOLS),
                *(Ability.LORA, Ability.TENSOR_PARALLEL),
            )
        ),
        stream_usage=StreamUsage.AT_END,
        abort=Abort.NONE,
        authenticates=False,
        image="nvcr.io/nvidia/tritonserver (-vllm-python-py3, -trtllm-python-py3)",
        notes=__doc__ or "",
    ),
    build=build,
    ready=ReadyAnswers(empty_body, unready_status=400),
    readiness_path="/health/ready",
    read_load=metrics.load,
    platform_options=platform_options,
    context_patterns=context_patterns,
    make_headers=no_key,
    request_id_header=None,
)
