"""`headrace serve MODEL`: one model behind an OpenAI-compatible API, until SIGTERM or Ctrl-C."""

import contextlib
import os
from dataclasses import replace
from typing import Annotated

import typer

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.base.prefix_hash import key_bytes_max, key_bytes_min
from headrace.cli.adapter_options import (
    Loras,
    MaxLoraRank,
    MaxLoras,
    max_loras_default,
    with_adapters,
)
from headrace.cli.engine_settings import (
    ActivationBits,
    ChatTemplateFile,
    ContextLength,
    CpuMoe,
    DeviceMap,
    DraftModel,
    DraftTokens,
    KvCache,
    KvCacheDtype,
    KvTokens,
    LoadCheck,
    LoadChecks,
    MaxNumSeqs,
    ModelArgument,
    PublicPrompts,
    Quantize,
    StepTimeout,
    SwapTokens,
    TargetStepMs,
    TenantCacheTokens,
    TensorParallelSize,
    Threads,
    activation_width_default,
    draft_tokens_default,
    kv_tokens_default,
    max_num_seqs_default,
    service_config,
    step_timeout_default_s,
)
from headrace.cli.kv_options import (
    KvLease,
    KvTransfer,
    KvTransferPort,
    kv_transfers,
    lease_default_s,
)
from headrace.cli.load_checks import with_load_checks
from headrace.cli.memory_check import check_memory
from headrace.cli.model_files import resolve_model
from headrace.cli.operator_options import AdminHost, AdminPort, operator_listener
from headrace.cli.packed_weights import with_packed_weights
from headrace.cli.served_model import ServedModel, key_variable, read_api_key
from headrace.cli.settings import CacheDir, OtlpEndpoint
from headrace.cli.tracing_options import tracing
from headrace.engine_server.dialect import check_parsers
from headrace.engine_server.service import ModelService
from headrace.http import server
from headrace.protocol.reasoning import reasoning_formats
from headrace.protocol.tool_parsers import tool_formats
from headrace.spec.prefix_key import prefix_key_variable
from headrace.weights.lora.adapter import rank_max_default

drain_timeout_default_s = 30.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve", help="Serve one model over an OpenAI-compatible API.")(serve)


def serve(
    *,
    model: ModelArgument,
    cache_dir: CacheDir,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8000,
    kv_tokens: KvTokens = kv_tokens_default,
    kv_cache_dtype: KvCache = KvCacheDtype.F16,
    activation_bits: ActivationBits = activation_width_default,
    quantize: Quantize = None,
    threads: Threads = None,
    max_num_seqs: MaxNumSeqs = max_num_seqs_default,
    context_length: ContextLength = None,
    draft_tokens: DraftTokens = draft_tokens_default,
    draft_model: DraftModel = None,
    target_step_ms: TargetStepMs = None,
    swap_tokens: SwapTokens = None,
    public_prompts: PublicPrompts = None,
    chat_template: ChatTemplateFile = None,
    tenant_cache_tokens: TenantCacheTokens = None,
    step_timeout: StepTimeout = step_timeout_default_s,
    served_model_name: Annotated[
        str | None, typer.Option(help="What clients call the model; default: its own name.")
    ] = None,
    tool_parser: Annotated[
        str | None,
        typer.Option(
            help=f"How the model writes calls of tools: {', '.join(tool_formats)} or none; "
            "default: as its chat template tells."
        ),
    ] = None,
    reasoning_parser: Annotated[
        str | None,
        typer.Option(
            help=f"How the model marks its thoughts: {', '.join(reasoning_formats)} or none; "
            "default: as its chat template tells."
        ),
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(help="The environment variable with the key that clients must send.")
    ] = key_variable,
    allow_public: Annotated[
        bool, typer.Option("--allow-public", help="Listen beyond this machine without a key.")
    ] = False,
    drain_timeout_s: Annotated[
        float,
        typer.Option("--drain-timeout", min=0, help="How long running requests may take (s)."),
    ] = drain_timeout_default_s,
    otlp_endpoint: OtlpEndpoint = None,
    lora: Loras = None,
    max_loras: MaxLoras = max_loras_default,
    max_lora_rank: MaxLoraRank = rank_max_default,
    admin_port: AdminPort = None,
    admin_host: AdminHost = "127.0.0.1",
    kv_transfer: KvTransfer = False,
    kv_transfer_port: KvTransferPort = 0,
    kv_lease_s: KvLease = lease_default_s,
    tensor_parallel_size: TensorParallelSize = 1,
    device_map: DeviceMap = None,
    n_cpu_moe: CpuMoe = 0,
    load_checks: LoadChecks = LoadCheck.WARN,
) -> None:
    """Serve one model over an OpenAI-compatible API."""
    api_key = read_api_key(api_key_env)
    if not (allow_public or api_key or server.is_loopback(host)):
        raise ConfigurationError(
            f"Refusing to listen on {host} without a key: anyone who reaches this machine could "
            f"use the model. Set {api_key_env}, or pass --allow-public if that is wanted."
        )
    check_parsers(tool_parser, reasoning_parser)
    prefix_key = _read_prefix_key()
    transfers = kv_transfers(
        host, kv_transfer_port, kv_lease_s, is_on=kv_transfer, prefix_key=prefix_key
    )
    sock = server.bind(host, port)  # before a download, so that a taken port is known at once
    with sock, tracing(otlp_endpoint, "headrace-engine") as tracer:
        resolved = resolve_model(model, cache_dir, quantize)
        draft = None if draft_model is None else resolve_model(draft_model, cache_dir)
        config = service_config(
            resolved.path,
            served_model_name or resolved.name,
            kv_tokens=kv_tokens,
            threads=threads,
            context_length=context_length,
            max_num_seqs=max_num_seqs,
            step_timeout_s=step_timeout,
            draft_tokens=draft_tokens,
            draft_model_path=None if draft is None else draft.path,
            target_step_ms=target_step_ms,
            prefix_key=prefix_key,
            tenant_cache_tokens=tenant_cache_tokens,
            kv_cache_dtype=kv_cache_dtype,
            activation_bits=activation_bits,
            swap_tokens=swap_tokens,
            public_prompts=public_prompts,
            chat_template=chat_template,
            kv_transfers=transfers,
            tensor_parallel=tensor_parallel_size,
            device_map=device_map,
            cpu_moe_layers=n_cpu_moe,
        )
        config = replace(config, tool_parser=tool_parser, reasoning_parser=reasoning_parser)
        slots = max_loras if admin_port is not None else min(max_loras, len(lora or []))
        config = with_adapters(config, lora, slots, max_lora_rank, cache_dir)
        config = replace(config, planned_bytes=check_memory(config.engine).parts)
        config = with_load_checks(config, load_checks, resolved, cache_dir, draft)
        config = with_packed_weights(config, resolved, cache_dir, draft)
        listener = operator_listener(admin_host, admin_port)
        service = ModelService(config, SystemClock())
        served = ServedModel(service, sock, api_key, tracer, listener)
        with contextlib.nullcontext() if listener is None else listener.sock:
            server.run(served.serve(drain_timeout_s))


def _read_prefix_key() -> bytes | None:
    """The secret under which KV blocks are named, if this server shares it with a router."""
    text = os.environ.get(prefix_key_variable)
    if text is None:
        return None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if not key_bytes_min <= len(key) <= key_bytes_max:
        raise ConfigurationError(
            f"{prefix_key_variable} must be {key_bytes_min} to {key_bytes_max} bytes in "
            "hexadecimal, or not be set."
        )
    return key
