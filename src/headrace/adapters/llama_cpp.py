"""llama.cpp's llama-server, as far as headrace must know it.

Metrics: `prompt_tokens_total` leaves out what came from the cache, so both are added. There is no
KV usage. Usage: `timings_per_token` puts running counts into every chunk, so that an abort is
billed by the engine's own numbers. Contexts: `-c` is shared by the slots, so a declared context is
multiplied by their number; KV is then reserved for each, and no request can starve another.

Known traps:

* all read; #23652, #16736: unified KV, the default with automatic slots, overflows for all at
  once: every running request fails. -> Where the model version has a context, slots and a context
  for each are declared.
* all read: `model` is ignored; the loaded model answers to any name. -> The served name is listed
  by `-a`, and only it is sent.
* all read: `--metrics` is off by default (HTTP 501). -> It is passed.
* all read: no cache salt; a tenant can time another's cached prefix. -> Not claimed; give tenants
  deployments of their own, or `--no-cache-prompt`.
* all read: named and required tool choice silently become "auto". -> Not claimed.
* 2026-10, measured: usage of several choices counts one. -> The gateway refuses `n` above 1, and
  every field that it does not know (`n_cmpl`, `id_slot`).
* 2026-10, measured: text completions carry usage in the last content chunk, also unasked, and not
  in a chunk of its own. -> Usage is read wherever it stands.
* 2026-10, measured: /health is open, but /metrics and the API ask for the key. -> Probes send it
  everywhere.
* older, not dated: an error inside a stream came as an `error:` field, not as `data:`. -> Such a
  stream ends without its end marker, and fails.
"""

import msgspec

from headrace.adapters.facts import (
    Ability,
    Abort,
    EngineFacts,
    Evidence,
    LoraChoice,
    Start,
    StreamUsage,
)
from headrace.adapters.load_metrics import LoadMetrics
from headrace.adapters.lora import lora_paths
from headrace.adapters.openai_compatible import OpenAICompatible, ReadyAnswers, options
from headrace.adapters.protocol import EngineLoad, LaunchCommand, LaunchRequest
from headrace.spec.settlements import TokenUsage

program = "llama-server"  # found on PATH
key_variable = "LLAMA_API_KEY"
sequences_default = 4  # what llama-server itself chooses

platform_options = frozenset(
    (
        *("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "--models-dir"),
        *("-a", "--alias", "--host", "--port", "--api-prefix", "--reuse-port"),
        *("--api-key", "--api-key-file", "--metrics", "--no-metrics"),
        *("-c", "--ctx-size", "-np", "--parallel"),
    )
)

cached_name = "llamacpp:prompt_tokens_cached_total"
metrics = LoadMetrics(
    running=("llamacpp:requests_processing",),
    waiting=("llamacpp:requests_deferred",),
    prompt_tokens=("llamacpp:prompt_tokens_total",),
    completion_tokens=("llamacpp:tokens_predicted_total",),
    cached_tokens=(cached_name,),
)


def build(request: LaunchRequest) -> LaunchCommand:
    """One llama-server; its key is read from the environment, which `ps` does not show."""
    slots, context = request.sequences_max, None
    if request.context_length is not None:
        slots = slots or sequences_default
        context = request.context_length * slots
    argv = (
        *(program, "-m", request.model_path, "-a", request.served_model_name),
        *("--host", request.host, "--port", str(request.port), "--metrics"),
        *options(
            ("-t", request.threads),
            ("-c", context),
            ("-np", slots),
            ("--no-cache-prompt", request.prefix_cache is False),
        ),
        *(("-sm", "row") if (request.tensor_parallel or 1) > 1 else ()),
        *lora_paths(request, "--lora", "--lora-init-without-apply"),
    )
    return LaunchCommand(argv, {key_variable: request.api_key})


def read_load(text: str) -> EngineLoad:
    """The load, with the cached tokens among the prompt tokens."""
    load = metrics.load(text)
    if load.prompt_tokens_total is None:
        return load
    return EngineLoad(
        running_requests=load.running_requests,
        waiting_requests=load.waiting_requests,
        prompt_tokens_total=load.prompt_tokens_total + (load.cached_tokens_total or 0),
        completion_tokens_total=load.completion_tokens_total,
        cached_tokens_total=load.cached_tokens_total,
    )


class Timings(msgspec.Struct):
    """The running counts of one request."""

    cache_n: int = 0  # prompt tokens from the cache
    prompt_n: int = 0  # prompt tokens computed
    predicted_n: int = 0
    draft_n: int | None = None  # guessed; absent while nothing was
    draft_n_accepted: int = 0


_decode_timings = msgspec.json.Decoder(Timings).decode


def running_usage(value: bytes) -> TokenUsage | None:
    """The usage in a chunk's `timings`."""
    try:
        timings = _decode_timings(value)
    except msgspec.DecodeError:
        return None
    cached, computed = max(0, timings.cache_n), max(0, timings.prompt_n)
    drafted = timings.draft_n
    return TokenUsage(
        cached + computed,
        cached,
        max(0, timings.predicted_n),
        draft_tokens=None if drafted is None else max(0, drafted - timings.draft_n_accepted),
    )


class HealthBody(msgspec.Struct):
    """What /health answers when the model is there."""

    status: str


def is_ok(body: bytes) -> bool:
    """Whether /health says that the model is there."""
    try:
        return msgspec.json.decode(body, type=HealthBody).status == "ok"
    except msgspec.DecodeError:
        return False


adapter = OpenAICompatible(
    name="llama_cpp",
    facts=EngineFacts(
        title="llama.cpp (llama-server)",
        start=Start.PROCESS,
        evidence=Evidence.REAL,
        version_read="commit 3f545bec of 2026-08; measured with xllamacpp 2026.10.11549",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.COMPLETIONS, Ability.RESPONSES, Ability.MESSAGES),
                *(Ability.EMBEDDINGS, Ability.TOOLS, Ability.JSON_SCHEMA, Ability.LOGPROBS),
                *(Ability.LORA, Ability.VISION, Ability.TENSOR_PARALLEL, Ability.PREFIX_CACHE),
            )
        ),
        stream_usage=StreamUsage.EVERY_CHUNK,
        abort=Abort.DISCONNECT,
        authenticates=True,
        tests="tests/contract/test_adapter.py, tests/e2e/test_up_llama_cpp.py",
        package="xllamacpp (PyPI), or llama-server on PATH",
        image="ghcr.io/ggml-org/llama.cpp:server",
        listens_while_loading=True,
        lora=LoraChoice.SCALES,
        notes=__doc__ or "",
    ),
    build=build,
    ready=ReadyAnswers(is_ok),
    read_load=read_load,
    platform_options=platform_options,
    request_id_header=None,  # it makes its own
    stream_fields={"stream_options": {"include_usage": True}, "timings_per_token": True},
    running_usage_field="timings",
    read_running_usage=running_usage,
)
