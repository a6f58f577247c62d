"""vLLM's `vllm serve`, as far as headrace must know it.

Metrics carry `engine`, one sample for each data-parallel rank: counts are summed, of KV usage the
fullest rank counts. KV usage leaves out what is cached and free. Context errors are told in words
that changed over the years; all known ones are read.

Known traps:

* all read: the port is bound but nobody listens while the model loads; connections are refused. ->
  No answer is LOADING, and the launcher tells whether the process lives.
* all read: `--api-key` guards /v1, /v2 and /inference alone; /pause, /tokenize, /metrics and
  others are open. -> The engine listens where only gateways reach it.
* all read: `/sleep`, `/reset_prefix_cache` and others exist with VLLM_SERVER_DEV_MODE=1. -> Never
  set.
* V1 (0.8 and later): `gpu_cache_usage_perc` became `kv_cache_usage_perc`. -> Both are read.
* 2026-05: `--gpu-memory-utilization` is 0.92 by default, earlier 0.9. -> Passed where declared.
* all read: cached tokens are in usage only with `--enable-prompt-tokens-details`. -> Passed.
* all read: `cache_salt` protects only if the caller cannot choose it. -> The gateway overwrites it
  with one of the tenant's.
* all read: a `priority` is refused with 400 unless the policy is `priority`. -> None is sent.
* #8625: `completion_tokens` in streams was wrong in 2024. -> The last usage of a stream counts.
* #54947, #32442: generation went on after a disconnect in some releases. -> Nothing can be done
  from outside; the abort is billed by the last usage that came.
* all read: an adapter's rank may be 16 by default. -> Pass `--max-lora-rank` in the engine
  arguments where one has more.
* all read: tools that the model may call are refused with 400 unless `--enable-auto-tool-choice`
  and `--tool-call-parser` are given; the parser is the model family's. -> Give both in the engine
  arguments.
* all read: embeddings, chats and images depend on the model that is served. -> Declare the model
  version's capabilities.
* 0.11 and later: several nodes need no Ray; those beside the first serve no API. -> `--nnodes` and
  the like, and `--headless` there. All devices share each layer unless the engine arguments give
  `--pipeline-parallel-size` and the deployment `--tensor-parallel`.
* all read: KV moves between replicas by the NIXL connector, a package of its own, whose data goes
  by UCX over RDMA or ports that UCX chooses. -> Have `nixl` in the image; on Kubernetes without
  RDMA set `UCX_TCP_PORT_RANGE` and open it.
* all read: KV that nobody fetches waits for 480 s. -> `VLLM_NIXL_ABORT_REQUEST_TIMEOUT` of the
  deployment's environment.
* all read: what came from another replica is in `cached_tokens`, too. -> A split request's prompt
  is charged at the price of cached input.
* all read: the publisher of KV events connects to an address unless `*` or `::` is in it. ->
  One of IPv4 is given as IPv6 writes it (`[::ffff:10.0.0.7]`); a host name becomes all addresses;
  over IPv6 nothing is published, and the router believes what it sent.
* 2026: KV events are maps by names, where they were lists. -> Both are read.
* CPU builds: a step may take 2,048 prompt tokens and stall every stream. -> Pass
  `--max-num-batched-tokens` in the engine arguments.
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
from headrace.adapters.kv_messages import kv_events_port, publisher_config
from headrace.adapters.load_metrics import LoadMetrics
from headrace.adapters.lora import lora_words
from headrace.adapters.openai_compatible import (
    OpenAICompatible,
    ReadyAnswers,
    empty_body,
    options,
    usage_in_every_chunk,
)
from headrace.adapters.protocol import LaunchCommand, LaunchRequest, ReadinessState
from headrace.spec.node_groups import NodeGroup, leader_host, node_rank

program = "vllm"
key_variable = "VLLM_API_KEY"
threads_variable = "OMP_NUM_THREADS"  # of CPU builds
# Where another replica asks for the addresses of KV that waits for it (NIXL's handshake).
side_channel_host = "VLLM_NIXL_SIDE_CHANNEL_HOST"
side_channel_port = "VLLM_NIXL_SIDE_CHANNEL_PORT"
side_channel_offset = 20_000  # above the port, where the launcher gives none
# Either side of a transfer, as a replica's role moves without a new start.
connector_config = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'

platform_options = frozenset(
    (
        *("--host", "--port", "--uds", "--model", "--served-model-name", "--root-path"),
        *("--api-key", "--ssl-keyfile", "--ssl-certfile", "--disable-log-stats"),
        "--kv-transfer-config",
        *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"),
    )
)

metrics = LoadMetrics(
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    prompt_tokens=("vllm:prompt_tokens_total",),
    completion_tokens=("vllm:generation_tokens_total",),
    cached_tokens=("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total"),
    preemptions=("vllm:num_preemptions_total",),
)

context_patterns = (
    ContextPattern.of(
        r"maximum context length is (?P<context>\d+) tokens.{0,200}?"
        r"\((?P<prompt>\d+) in the (?:messages|prompt)"
    ),
    ContextPattern.of(
        r"maximum context length is (?P<context>\d+) tokens.{0,200}?"
        r"(?:has|contains(?: at least)?) (?P<prompt>\d+) (?:input )?tokens"
    ),
    ContextPattern.of(r"maximum context length is (?P<context>\d+) tokens"),
    ContextPattern.of(
        r"prompt \(length (?P<prompt>\d+)\) is longer than the maximum model length of "
        r"(?P<context>\d+)"
    ),
)


def loras_max(request: LaunchRequest) -> tuple[str, ...]:
    """Room in a batch for as many adapters as are loaded, where vLLM's own default has less."""
    return ("--max-loras", str(len(request.loras)))


def group_words(group: NodeGroup | None) -> tuple[str, ...]:
    """How the processes of several nodes find each other."""
    if group is None:
        return ()
    return (
        *("--nnodes", str(group.node_count), "--node-rank", node_rank),
        *("--master-addr", leader_host, "--master-port", str(group.port)),
    )


def build(request: LaunchRequest) -> LaunchCommand:
    """One `vllm serve`; its key is read from the environment."""
    argv = (
        *(program, "serve", request.model_path),
        *("--served-model-name", request.served_model_name),
        *("--host", request.host, "--port", str(request.port)),
        "--enable-prompt-tokens-details",
        *options(
            ("--max-model-len", request.context_length),
            ("--tensor-parallel-size", request.tensor_parallel),
            ("--gpu-memory-utilization", request.memory_share),
            ("--max-num-seqs", request.sequences_max),
            ("--quantization", request.quantization),
            ("--kv-events-config", publisher_config(request)),
            ("--enable-prefix-caching", request.prefix_cache is True),
            ("--no-enable-prefix-caching", request.prefix_cache is False),
        ),
        *lora_words(request, "--lora-modules", "--enable-lora", *loras_max(request)),
        *group_words(request.group),
        *options(("--kv-transfer-config", connector_config if request.moves_kv else None)),
    )
    environment = {key_variable: request.api_key}
    if request.threads is not None:
        environment[threads_variable] = str(request.threads)
    if request.moves_kv:
        port = request.kv_transfer_port or kv_events_port(request.port, side_channel_offset)
        environment |= {side_channel_host: request.host, side_channel_port: str(port)}
    workers = () if request.group is None else (*argv, "--headless")
    return LaunchCommand(argv, environment, worker_argv=workers)


adapter = OpenAICompatible(
    name="vllm",
    facts=EngineFacts(
        title="vLLM",
        start=Start.PROCESS,
        evidence=Evidence.REPLAYED,
        version_read="commit 9aaf83ef of 2026-05",
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
        authenticates=True,
        package="vllm (PyPI)",
        image="vllm/vllm-openai",
        lora=LoraChoice.NAME,
        notes=__doc__ or "",
    ),
    build=build,
    ready=ReadyAnswers(empty_body, unready=ReadinessState.FAILED),
    read_load=metrics.load,
    platform_options=platform_options,
    context_patterns=context_patterns,
    stream_fields=usage_in_every_chunk,
    salt_field="cache_salt",
)
