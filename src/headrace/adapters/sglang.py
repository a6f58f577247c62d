"""SGLang's server, as far as headrace must know it.

`token_usage` leaves out tokens that can be evicted, as vLLM's KV usage does.

Known traps:

* all read: metrics are off by default. -> `--enable-metrics` is passed.
* all read: the key is an option, not a variable; `ps` would show it. -> No key is set: the engine
  listens on an address that only gateways reach.
* all read: cached tokens are in usage only with `--enable-cache-report`. -> Passed.
* all read: tensor-parallel schedulers report from rank 0 alone. -> That is the load of all.
* all read: /health answers 503 while the server starts and when it shuts down. -> LOADING.
* #6888, #11970, #20010, #36081: a failed check of the memory pool stops the server. -> The replica
  is started again.
* #36475, #18701: aborted sessions and retracted requests leaked KV. -> Watch KV usage at rest.
* all read: `--schedule-policy lpm` favours long cached prefixes and may starve others. -> Not set.
* all read: tool calls come as plain text unless `--tool-call-parser` names the model family's. ->
  Give it in the engine arguments.
* all read: embeddings, chats and images depend on the model that is served. -> Declare the model
  version's capabilities.
* all read: of several nodes the first one answers; the others only /health. -> That is never asked.
* all read: of a request that is split, both engines get the whole at once, and each has its part by
  how it was started (`--disaggregation-mode`, `bootstrap_room`); one alone answers nothing. -> The
  gateway asks both, whatever the prompt's length, and roles never move.
* all read: KV moves by Mooncake unless `--disaggregation-transfer-backend` says `nixl`, over RDMA
  or TCP. -> Have the package in the image, and give the backend in the engine arguments.
* all read: the publisher of KV events connects to an address unless `*` or `::` is in it. ->
  One of IPv4 is given as IPv6 writes it (`[::ffff:10.0.0.7]`); a host name becomes all addresses;
  over IPv6 nothing is published, and the router believes what it sent.
* all read: errors have no `error` object; the words are at the top. -> Read there.
"""

from headrace.adapters.engine_errors import ContextPattern
from headrace.adapters.facts import (
    Ability,
    Abort,
    EngineFacts,
    Evidence,
    LoraChoice,
    Start,
    StreamUsage,
)
from headrace.adapters.kv_messages import publisher_config
from headrace.adapters.load_metrics import LoadMetrics
from headrace.adapters.lora import lora_words
from headrace.adapters.meeting import meeting_port
from headrace.adapters.openai_compatible import (
    OpenAICompatible,
    ReadyAnswers,
    empty_body,
    no_key,
    options,
    usage_in_every_chunk,
)
from headrace.adapters.protocol import LaunchCommand, LaunchRequest
from headrace.spec.disaggregation import ReplicaRole
from headrace.spec.node_groups import NodeGroup, leader_host, node_rank

command_words = ("python3", "-m", "sglang.launch_server")

platform_options = frozenset(
    (
        *("--host", "--port", "--model-path", "--model", "--served-model-name"),
        *("--api-key", "--admin-api-key", "--ssl-keyfile", "--ssl-certfile"),
        *("--disaggregation-mode", "--disaggregation-bootstrap-port"),
    )
)

metrics = LoadMetrics(
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    kv_usage=("sglang:token_usage",),
    prompt_tokens=("sglang:prompt_tokens_total",),
    completion_tokens=("sglang:generation_tokens_total",),
    cached_tokens=("sglang:cached_tokens_total",),
    preemptions=("sglang:num_retracted_requests_total",),
)

context_patterns = (
    ContextPattern.of(
        r"input \((?P<prompt>\d+) tokens\) is longer than the model'?s context length "
        r"\((?P<context>\d+) tokens\)"
    ),
    ContextPattern.of(
        r"requested token count exceeds the model'?s maximum context length of "
        r"(?P<context>\d+) tokens"
    ),
)


def group_words(group: NodeGroup | None) -> tuple[str, ...]:
    """How the processes of several nodes find each other."""
    if group is None:
        return ()
    return (
        *("--nnodes", str(group.node_count), "--node-rank", node_rank),
        *("--dist-init-addr", f"{leader_host}:{group.port}"),
    )


def half_words(request: LaunchRequest) -> tuple[str, ...]:
    """Its part of every request, and where the one that computes prompts waits with their KV."""
    if not request.moves_kv or request.role is ReplicaRole.WHOLE:
        return ()
    mode = ("--disaggregation-mode", request.role.value)
    if request.role is ReplicaRole.DECODE:
        return mode
    port = meeting_port(request.port, request.kv_transfer_port)
    return (*mode, "--disaggregation-bootstrap-port", str(port))


def build(request: LaunchRequest) -> LaunchCommand:
    """One SGLang server."""
    return LaunchCommand(
        (
            *(*command_words, "--model-path", request.model_path),
            *("--served-model-name", request.served_model_name),
            *("--host", request.host, "--port", str(request.port)),
            *("--enable-metrics", "--enable-cache-report"),
            *options(
                ("--context-length", request.context_length),
                ("--tp-size", request.tensor_parallel),
                ("--mem-fraction-static", request.memory_share),
                ("--max-running-requests", request.sequences_max),
                ("--quantization", request.quantization),
                ("--kv-events-config", publisher_config(request)),
                ("--disable-radix-cache", request.prefix_cache is False),
            ),
            *lora_words(request, "--lora-paths", "--enable-lora"),
            *group_words(request.group),
            *half_words(request),
        ),
        {} if request.threads is None else {"OMP_NUM_THREADS": str(request.threads)},
    )


adapter = OpenAICompatible(
    name="sglang",
    facts=EngineFacts(
        title="SGLang",
        start=Start.PROCESS,
        evidence=Evidence.REPLAYED,
        version_read="commit 8905cbd4 of 2026",
        abilities=frozenset(
            (
                *(Ability.CHAT, Ability.COMPLETIONS, Ability.RESPONSES, Ability.MESSAGES),
                *(Ability.EMBEDDINGS, Ability.TOOLS, Ability.FORCED_TOOLS, Ability.JSON_SCHEMA),
                *(Ability.LOGPROBS, Ability.LORA, Ability.VISION),
                *(Ability.TENSOR_PARALLEL, Ability.SEVERAL_NODES),
                *(Ability.PREFIX_CACHE, Ability.PREFIX_SALT, Ability.KV_EVENTS),
            )
        ),
        stream_usage=StreamUsage.EVERY_CHUNK,
        abort=Abort.DISCONNECT,
        publishes_kv_events=True,
        moves_kv=True,
        roles_are_fixed=True,
        authenticates=False,
        package="sglang (PyPI)",
        image="lmsysorg/sglang",
        lora=LoraChoice.PATH_FIELD,
        listens_while_loading=True,
        notes=__doc__ or "",
    ),
    build=build,
    ready=ReadyAnswers(empty_body),
    read_load=metrics.load,
    platform_options=platform_options,
    context_patterns=context_patterns,
    make_headers=no_key,
    stream_fields=usage_in_every_chunk,
    salt_field="cache_salt",
)
