"""An engine with OpenAI's API over HTTP, composed of data and of functions where it differs.

Every engine of others is one value of this class in a module of its own. What most have in common
is the default here; nothing is inherited.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.adapters.engine_errors import ContextPattern
from headrace.adapters.facts import EngineFacts
from headrace.adapters.listed_models import context_length_of
from headrace.adapters.load_metrics import LoadMetrics
from headrace.adapters.lora import check_lora
from headrace.adapters.openai_errors import error_of, tells_context
from headrace.adapters.protocol import (
    Dialect,
    EngineLoad,
    LaunchCommand,
    LaunchRequest,
    Readiness,
    ReadinessState,
    RequestExtras,
)
from headrace.base.errors import HeadraceError, InvalidRequest
from headrace.spec.settlements import TokenUsage

usage_at_end: Mapping[str, object] = {"stream_options": {"include_usage": True}}
usage_in_every_chunk: Mapping[str, object] = {
    "stream_options": {"include_usage": True, "continuous_usage_stats": True}
}


@dataclass(frozen=True, slots=True)
class ReadyAnswers:
    """What the readiness route answers; a body of any other kind is a stranger's."""

    is_ready: Callable[[bytes], bool]  # of a body with status 200
    unready: ReadinessState = ReadinessState.LOADING
    unready_status: int = 503

    def read(self, status: int, body: bytes) -> Readiness:
        """The readiness in an answer."""
        if status == 200 and self.is_ready(body):
            return Readiness(ReadinessState.READY, "ready")
        if status == self.unready_status:
            words = "loading" if self.unready is ReadinessState.LOADING else "the engine is dead"
            return Readiness(self.unready, words)
        return Readiness(ReadinessState.STARTING, f"an unexpected answer ({status})")


def empty_body(body: bytes) -> bool:
    """Ready by status alone, as vLLM, SGLang, TGI and TensorRT-LLM say it."""
    return not body.strip()


def bearer(api_key: str) -> dict[str, str]:
    """The header of OpenAI's API."""
    return {"Authorization": f"Bearer {api_key}"}


def no_key(_api_key: str) -> dict[str, str]:
    """For engines that ask for none: what is not sent cannot leak."""
    return {}


@dataclass(frozen=True, slots=True)
class OpenAICompatible:
    """One kind of engine; an `EngineAdapter`."""

    name: str
    facts: EngineFacts
    build: Callable[[LaunchRequest], LaunchCommand]
    ready: ReadyAnswers
    readiness_path: str = "/health"
    metrics_path: str | None = "/metrics"
    read_load: Callable[[str], EngineLoad] = LoadMetrics().load
    platform_options: frozenset[str] = frozenset()  # not for a deployment to set
    context_patterns: Sequence[ContextPattern] = ()
    make_headers: Callable[[str], dict[str, str]] = bearer
    names_model_by_path: bool = False
    api_prefix: str = "/v1"  # where OpenAI's routes are
    request_id_header: str | None = "X-Request-Id"
    stream_fields: Mapping[str, object] = field(default_factory=lambda: usage_at_end)
    salt_field: str | None = None  # of the body, where the prefix cache can be kept apart
    running_usage_field: str | None = None
    read_running_usage: Callable[[bytes], TokenUsage | None] | None = None
    marks_stream_end: bool = True
    keeps_usage_records: bool = False
    overloaded_statuses: frozenset[int] = frozenset((503,))
    # Which say that it failed, and of a request that does not fit too.
    context_statuses: frozenset[int] = frozenset()
    output_limit_field: str = "max_tokens"
    dialect: Dialect | None = None

    def command(self, request: LaunchRequest) -> LaunchCommand:
        """The command line that starts one replica.

        InvalidRequest if the deployment's own arguments touch what the platform decides."""
        refuse_platform_options(request.extra_arguments, self.platform_options)
        check_lora(self.facts.title, self.facts.lora, request.loras)
        command = self.build(request)
        more = request.extra_arguments
        return replace(
            command,
            argv=(*command.argv, *more),
            worker_argv=(*command.worker_argv, *more) if command.worker_argv else (),
        )

    def served_name(self, model_name: str, model_path: str) -> str:
        """What the engine calls the model that it was started with."""
        return model_path if self.names_model_by_path else model_name

    def headers(self, api_key: str) -> dict[str, str]:
        """The headers that authenticate the gateway to this engine."""
        return self.make_headers(api_key)

    def readiness(self, status: int, body: bytes) -> Readiness:
        """What an answer of `readiness_path` means."""
        return self.ready.read(status, body)

    def load(self, metrics_text: str) -> EngineLoad:
        """The live load in an answer of `metrics_path`; malformed lines are ignored."""
        return self.read_load(metrics_text)

    def error(self, status: int, body: bytes) -> HeadraceError:
        """An unsuccessful answer as "the caller is wrong", "the engine is wrong" or "try again"."""
        meaning = 503 if status in self.overloaded_statuses else status
        if status in self.context_statuses and tells_context(body, self.context_patterns):
            meaning = 400
        return error_of(meaning, body, self.context_patterns)

    def url(self, address: str, path: str) -> str:
        """Where an OpenAI route (`/v1/...`) is found on an engine at this address."""
        return address.rstrip("/") + self.api_prefix + path.removeprefix("/v1")

    def extras(self, *, stream: bool, request_id: str, cache_salt: str) -> RequestExtras:
        """What makes this engine report usage, and keeps tenants' prefix caches apart."""
        fields = dict(self.stream_fields) if stream else {}
        if self.salt_field is not None:
            fields[self.salt_field] = cache_salt
        headers = {} if self.request_id_header is None else {self.request_id_header: request_id}
        return RequestExtras(headers, fields)

    def running_usage(self, value: bytes) -> TokenUsage | None:
        """The usage so far in the JSON value of `running_usage_field`; None if it tells none."""
        return None if self.read_running_usage is None else self.read_running_usage(value)

    def context_length(self, models_body: bytes, served_model_name: str) -> int | None:
        """The longest context by an answer of /v1/models; None if it does not say."""
        return context_length_of(models_body, served_model_name)


def refuse_platform_options(arguments: Sequence[str], platform_options: frozenset[str]) -> None:
    """InvalidRequest if an operator's argument decides where an engine listens or who may call."""
    for argument in arguments:
        option = argument.partition("=")[0]
        if option in platform_options:
            raise InvalidRequest(
                f"{option} is set by the platform; leave it out of the engine arguments.",
                param="engine_arguments",
            )


def options(*pairs: tuple[str, object]) -> tuple[str, ...]:
    """Options with their values, those of value None left out; True is an option without one."""
    words: list[str] = []
    for option, value in pairs:
        if value is None or value is False:
            continue
        words.append(option)
        if value is not True:
            words.append(str(value))
    return tuple(words)


def not_started_here(name: str, instead: str) -> Callable[[LaunchRequest], LaunchCommand]:
    """The `build` of engines that others bring up; `instead` tells the operator what to do."""

    def build(_request: LaunchRequest) -> LaunchCommand:
        raise InvalidRequest(f"{name} is not started by headrace. {instead}", param="engine")

    return build
