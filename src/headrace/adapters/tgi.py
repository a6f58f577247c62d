"""Hugging Face's Text Generation Inference (v3), as far as headrace must know it.

Prompt and generated tokens exist only as histograms; their sums are the counts. There is no KV
usage; the share of the token budget that the running batch may grow to stands for it.

Known traps:

* 2026: the project is in maintenance. -> Prefer another engine for new deployments.
* all read: `presence_penalty` x becomes `repetition_penalty` x + 2.0. -> Not claimed to be
  honoured.
* all read: `logit_bias` is accepted and not used; more than four stop strings are refused. -> As
  it is.
* all read: a context that is too long is 422 with `error_type` "validation". -> Told with numbers.
* all read: 424 is a failure of the engine during generation. -> The engine is wrong, try another.
* v3: prefix caching is automatic, and off with LoRA; PREFIX_CACHING=0 turns it off. -> Set where
  declared.
* all read: streams tell usage at their end alone. -> An abort is billed by what passed.
* all read: shards open the port only when all are ready. -> No answer is LOADING.
"""

from headrace.adapters.engine_errors import ContextPattern
from headrace.adapters.facts import Ability, Abort, EngineFacts, Evidence, Start, StreamUsage
from headrace.adapters.load_metrics import LoadMetrics
from headrace.adapters.openai_compatible import (
    OpenAICompatible,
    ReadyAnswers,
    empty_body,
    options,
)
from headrace.adapters.prometheus_text import read_samples
from headrace.adapters.protocol import EngineLoad, LaunchCommand, LaunchRequest

program = "text-generation-launcher"
key_variable = "API_KEY"
prefix_variable = "PREFIX_CACHING"

platform_options = frozenset(
    ("--model-id", "--hostname", "-p", "--port", "--api-key", "--prometheus-port", "--env")
)

budget_names = ("tgi_batch_current_max_tokens", "tgi_batch_max_total_tokens")
metrics = LoadMetrics(
    running=("tgi_batch_current_size",),
    waiting=("tgi_queue_size",),
    prompt_tokens=("tgi_request_input_length_sum",),
    completion_tokens=("tgi_request_generated_tokens_sum",),
)

context_patterns = (
    ContextPattern.of(
        r"`inputs` tokens \+ `max_new_tokens` must be <= (?P<context>\d+)\. "
        r"Given: (?P<prompt>\d+) `inputs` tokens"
    ),
    ContextPattern.of(
        r"`inputs` must have less than (?P<context>\d+) tokens\. Given: (?P<prompt>\d+)"
    ),
)


def build(request: LaunchRequest) -> LaunchCommand:
    """One launcher with its shards; the key is read from the environment."""
    context = request.context_length
    argv = (
        *(program, "--model-id", request.model_path),
        *("--hostname", request.host, "--port", str(request.port)),
        *options(
            ("--max-total-tokens", context),
            ("--max-input-tokens", None if context is None else max(1, context - 1)),
            ("--num-shard", request.tensor_parallel),
            ("--cuda-memory-fraction", request.memory_share),
            ("--max-concurrent-requests", request.sequences_max),
            ("--quantize", request.quantization),
        ),
    )
    environment = {key_variable: request.api_key}
    if request.prefix_cache is not None:
        environment[prefix_variable] = str(int(request.prefix_cache))
    if request.threads is not None:
        environment["OMP_NUM_THREADS"] = str(request.threads)
    return LaunchCommand(argv, environment)


def read_load(text: str) -> EngineLoad:
    """The load, with the batch's share of the token budget for KV usage."""
    load = metrics.load(text)
    budget = read_samples(text, budget_names)
    used, total = (budget.get(name) for name in budget_names)
    if used is None or total is None or used < 0 or total <= 0:
        return load
    return EngineLoad(
        running_requests=load.running_requests,
        waiting_requests=load.waiting_requests,
        kv_usage=min(1.0, used / total),
        prompt_tokens_total=load.prompt_tokens_total,
        completion_tokens_total=load.completion_tokens_total,
    )


adapter = OpenAICompatible(
    name="tgi",
    facts=EngineFacts(
        title="Text Generation Inference",
        start=Start.PROCESS,
        evidence=Evidence.REPLAYED,
        version_read="commit db931fcf (v3)",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.COMPLETIONS, Ability.TOOLS, Ability.FORCED_TOOLS),
                *(Ability.JSON_SCHEMA, Ability.LOGPROBS, Ability.LORA, Ability.VISION),
                *(Ability.TENSOR_PARALLEL, Ability.PREFIX_CACHE),
            )
        ),
        stream_usage=StreamUsage.AT_END,
        abort=Abort.DISCONNECT,
        authenticates=True,
        image="ghcr.io/huggingface/text-generation-inference",
        notes=__doc__ or "",
    ),
    build=build,
    ready=ReadyAnswers(empty_body),
    read_load=read_load,
    platform_options=platform_options,
    context_patterns=context_patterns,
)
