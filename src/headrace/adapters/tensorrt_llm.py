"""TensorRT-LLM's `trtllm-serve` with its PyTorch backend, as far as headrace must know it.

Quantization is that of the checkpoint (ModelOpt), so there is no option for it.

Known traps:

* all read: `/metrics` is JSON of iterations, not Prometheus; that is at `/prometheus/metrics`, and
  only with `return_perf_metrics: true` in the file that `--config` names. -> The adapter reads it
  there; give the file in the engine arguments.
* all read: unknown fields are refused with 400. -> Only OpenAI's and `cache_salt` are sent.
* all read: usage in streams is on by default, against OpenAI's. -> Asked for, and taken out again
  where the caller did not ask.
* all read: a higher `priority` (0..1) is served first; vLLM means the opposite. -> None is sent.
* not verified: an API key of its own. -> No key; it listens where only gateways reach it.
* as its code has it, not measured: the model is built before the server listens. -> No answer is
  LOADING.
* older: /v1/embeddings is missing. -> Use a newer one.
* all read: tool calls come as plain text unless `--tool_parser` names the model family's. -> Give
  it in the engine arguments.
* all read: a LoRA adapter is asked for by `lora_request`, with paths of the engine's machine. ->
  None is given: a caller must not name paths.
* all read: KV events are at /kv_cache_events, to be fetched. -> Not read; the router guesses by
  what it sent.
* older: `--served_model_name` is missing; the name is then the model path's. -> Use a newer one.
* older: the file's option is `--extra_llm_api_options`. -> Give it in the engine arguments.
"""

from headrace.adapters.engine_errors import ContextPattern
from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.load_metrics import LoadMetrics
from headrace.adapters.openai_compatible import (
    OpenAICompatible,
    ReadyAnswers,
    empty_body,
    no_key,
    options,
    usage_in_every_chunk,
)
from headrace.adapters.protocol import LaunchCommand, LaunchRequest, ReadinessState

program = "trtllm-serve"

platform_options = frozenset(("--host", "--port", "--served_model_name"))

metrics = LoadMetrics(
    running=("trtllm_num_requests_running",),
    waiting=("trtllm_num_requests_waiting",),
    kv_usage=("trtllm_kv_cache_utilization",),
    prompt_tokens=("trtllm_prompt_tokens_total",),
    completion_tokens=("trtllm_generation_tokens_total",),
    cached_tokens=("trtllm_prompt_cached_tokens_total",),
)

context_patterns = (
    ContextPattern.of(
        r"prompt length \((?P<prompt>\d+)(?:\.\d+)?\).{0,200}?exceed max_\w+ \((?P<context>\d+)\)"
    ),
    ContextPattern.of(r"exceeds? (?:the )?(?:max_seq_len|maximum sequence length)"),
)


def build(request: LaunchRequest) -> LaunchCommand:
    """One `trtllm-serve`. Whether prefixes are cached is said in the file of `--config`."""
    return LaunchCommand(
        (
            *(program, request.model_path, "--backend", "pytorch"),
            *("--served_model_name", request.served_model_name),
            *("--host", request.host, "--port", str(request.port)),
            *options(
                ("--max_seq_len", request.context_length),
                ("--tp_size", request.tensor_parallel),
                ("--kv_cache_free_gpu_memory_fraction", request.memory_share),
                ("--max_batch_size", request.sequences_max),
            ),
        ),
        {} if request.threads is None else {"OMP_NUM_THREADS": str(request.threads)},
    )


adapter = OpenAICompatible(
    name="tensorrt_llm",
    facts=EngineFacts(
        title="TensorRT-LLM (trtllm-serve)",
        start=Start.PROCESS,
        evidence=Evidence.REPLAYED,
        version_read="1.x sources and documents of 2026",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.COMPLETIONS, Ability.RESPONSES),
                *(Ability.EMBEDDINGS, Ability.TOOLS, Ability.FORCED_TOOLS, Ability.JSON_SCHEMA),
                *(Ability.LOGPROBS, Ability.LORA, Ability.VISION, Ability.TENSOR_PARALLEL),
                *(Ability.PREFIX_CACHE, Ability.PREFIX_SALT, Ability.KV_EVENTS),
            )
        ),
        stream_usage=StreamUsage.EVERY_CHUNK,
        abort=Abort.DISCONNECT,
        authenticates=False,
        package="tensorrt-llm (PyPI)",
        image="nvcr.io/nvidia/tensorrt-llm/release",
        notes=__doc__ or "",
    ),
    build=build,
    ready=ReadyAnswers(empty_body, unready=ReadinessState.FAILED),
    metrics_path="/prometheus/metrics",
    read_load=metrics.load,
    platform_options=platform_options,
    context_patterns=context_patterns,
    make_headers=no_key,
    stream_fields=usage_in_every_chunk,
    salt_field="cache_salt",
)
