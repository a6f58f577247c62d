"""Our own engine, reached over HTTP like every other: `headrace serve` on a port of its own."""

import sys

import msgspec

from headrace.adapters.engine_errors import read_words
from headrace.adapters.facts import (
    Ability,
    Abort,
    EngineFacts,
    Evidence,
    LoraChoice,
    Start,
    StreamUsage,
)
from headrace.adapters.listed_models import context_length_of
from headrace.adapters.openai_compatible import (
    refuse_platform_options,
    usage_in_every_chunk,
)
from headrace.adapters.openai_errors import error_of
from headrace.adapters.prometheus_text import read_samples
from headrace.adapters.protocol import (
    EngineLoad,
    LaunchCommand,
    LaunchRequest,
    Readiness,
    ReadinessState,
    RequestExtras,
)
from headrace.base.errors import HeadraceError, InvalidRequest, RequestAborted
from headrace.spec.public_prompts import lines_of
from headrace.spec.settlements import TokenUsage

key_variable = "HEADRACE_API_KEY"
public_prompts_variable = "HEADRACE_PUBLIC_PROMPTS"  # longer than a process list should show

# An operator tunes an engine by these; where it listens and who may call it is the platform's.
platform_options = frozenset(
    ("--host", "--port", "--served-model-name", "--api-key-env", "--allow-public")
)

states = {
    "ready": ReadinessState.READY,
    "loading": ReadinessState.LOADING,
    "restarting": ReadinessState.LOADING,
    "draining": ReadinessState.LOADING,
    "hung": ReadinessState.HUNG,
    "failed": ReadinessState.FAILED,
}

running_name = "headrace_engine_running_requests"
waiting_name = "headrace_engine_waiting_requests"
kv_usage_name = "headrace_engine_kv_usage_ratio"
prompt_tokens_name = "headrace_engine_prompt_tokens_total"
completion_tokens_name = "headrace_engine_completion_tokens_total"
metric_names = (
    running_name,
    waiting_name,
    kv_usage_name,
    prompt_tokens_name,
    completion_tokens_name,
)


class ReadyzBody(msgspec.Struct):
    """What /readyz answers."""

    state: str
    progress: float | None = None
    detail: str = ""


_decode_readyz = msgspec.json.Decoder(ReadyzBody).decode


facts = EngineFacts(
    title="headrace serve",
    start=Start.PROCESS,
    evidence=Evidence.REAL,
    version_read="this one",
    abilities=frozenset(
        (
            *(Ability.CHAT, Ability.COMPLETIONS, Ability.RESPONSES, Ability.MESSAGES),
            *(Ability.EMBEDDINGS, Ability.TOOLS, Ability.FORCED_TOOLS, Ability.JSON_SCHEMA),
            *(Ability.LOGPROBS, Ability.LORA),
            *(Ability.PREFIX_CACHE, Ability.PREFIX_SALT, Ability.KV_EVENTS),
            Ability.TENSOR_PARALLEL,
        )
    ),
    stream_usage=StreamUsage.EVERY_CHUNK,
    abort=Abort.DISCONNECT,
    authenticates=True,
    tests="tests/contract/test_adapter.py, tests/e2e/test_up_usage.py, test_up_failures.py",
    package="headrace (PyPI)",
    listens_while_loading=True,
    kv_events_path="/internal/kv_events",
    tells_hang=True,
    moves_kv=True,
    shares_prompts=True,
    lora=LoraChoice.MODEL_AND_NAME,
    notes=__doc__ or "",
)


class HeadraceAdapter:
    """What is to be known about `headrace serve`."""

    name = "headrace"
    readiness_path = "/readyz"
    metrics_path = "/metrics"
    facts = facts
    running_usage_field = None
    marks_stream_end = True
    keeps_usage_records = True
    dialect = None
    output_limit_field = "max_tokens"

    def __init__(self, python: str = sys.executable) -> None:
        """`python` runs the engine: the interpreter that has headrace installed."""
        self._python = python

    def command(self, request: LaunchRequest) -> LaunchCommand:
        """The command line that starts one replica.

        InvalidRequest if the deployment's own arguments touch what the platform decides."""
        refuse_platform_options(request.extra_arguments, platform_options)
        if request.group is not None:
            raise InvalidRequest(
                "headrace's engine runs on one node; leave --nodes-per-replica out, or use an "
                "engine that spans several (docs/reference/engines.md).",
                param="resources",
            )
        arguments = [
            *(self._python, "-m", "headrace.cli.main", "serve", request.model_path),
            *("--host", request.host, "--port", str(request.port)),
            *("--served-model-name", request.served_model_name),
        ]
        if request.threads is not None:
            arguments += ["--threads", str(request.threads)]
        if request.context_length is not None:
            arguments += ["--context-length", str(request.context_length)]
        if request.tensor_parallel is not None and request.tensor_parallel > 1:
            arguments += ["--tensor-parallel-size", str(request.tensor_parallel)]
        for lora in request.loras:
            arguments += ["--lora", f"{lora.name}={lora.source}"]
        if request.loras:
            arguments += ["--max-loras", str(len(request.loras))]
        if request.moves_kv:
            arguments.append("--kv-transfer")
            if request.kv_transfer_port:
                arguments += ["--kv-transfer-port", str(request.kv_transfer_port)]
        environment = {key_variable: request.api_key}
        if request.public_prompts:
            environment[public_prompts_variable] = lines_of(request.public_prompts).decode()
        return LaunchCommand(
            argv=(*arguments, *request.extra_arguments),
            environment=environment,
            watches_lifeline=True,
        )

    def served_name(self, model_name: str, model_path: str) -> str:
        """What the engine calls the model: ours."""
        return model_name

    def headers(self, api_key: str) -> dict[str, str]:
        """The headers that authenticate the gateway to this engine."""
        return {"Authorization": f"Bearer {api_key}"}

    def readiness(self, status: int, body: bytes) -> Readiness:
        """What an answer of /readyz means; a stranger on the port is never ready."""
        try:
            said = _decode_readyz(body)
        except msgspec.DecodeError:
            return Readiness(ReadinessState.STARTING, f"an unexpected answer ({status})")
        state = states.get(said.state, ReadinessState.STARTING)
        if state is ReadinessState.READY and status != 200:
            state = ReadinessState.LOADING
        return Readiness(state, said.detail or said.state, said.progress)

    def load(self, metrics_text: str) -> EngineLoad:
        """The live load in an answer of /metrics."""
        values = read_samples(metrics_text, metric_names)

        def count(name: str) -> int | None:
            return int(values[name]) if name in values else None

        return EngineLoad(
            running_requests=count(running_name),
            waiting_requests=count(waiting_name),
            kv_usage=values.get(kv_usage_name),
            prompt_tokens_total=count(prompt_tokens_name),
            completion_tokens_total=count(completion_tokens_name),
        )

    def error(self, status: int, body: bytes) -> HeadraceError:
        """An unsuccessful answer as "the caller is wrong", "the engine is wrong" or "try again"."""
        if status == RequestAborted.http_status and read_words(body).code == RequestAborted.code:
            return RequestAborted("The operator of its engine ended this request.")
        return error_of(status, body)

    def url(self, address: str, path: str) -> str:
        """Where an OpenAI route (`/v1/...`) is found on an engine at this address."""
        return address + path

    def extras(self, *, stream: bool, request_id: str, cache_salt: str) -> RequestExtras:
        """Headers that the engine trusts a key's holder with, and usage in every chunk."""
        return RequestExtras(
            {"X-Request-Id": request_id, "X-Headrace-Cache-Salt": cache_salt},
            usage_in_every_chunk if stream else {},
        )

    def running_usage(self, value: bytes) -> TokenUsage | None:
        """None: `usage` tells it all."""
        return None

    def context_length(self, models_body: bytes, served_model_name: str) -> int | None:
        """The longest context by an answer of /v1/models; None if it does not say."""
        return context_length_of(models_body, served_model_name)
