"""What the HTTP process and the engine process say to each other, as length-prefixed msgpack.

A frame is four bytes of big-endian length and one tagged array. The engine process begins with
`Loading`, any number of times, then one of `Ready` and `Failed`; after `Ready` each step that
produced something is one `Outputs`. The HTTP process begins with `EngineConfig`; when either side
closes the socket, the engine process ends.
"""

import struct
from typing import Literal

import msgspec

from headrace.base.errors import HeadraceError
from headrace.engine.runner import ActivationBits, activation_bits_default

fields_passed_on = (int, float, str)  # of errors' fields
frame_bytes_max = 32 * 1024 * 1024  # a prompt of millions of token ids; more is a broken peer
_length = struct.Struct(">I")

WireLogprobs = tuple[float, tuple[tuple[int, float], ...]]


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter", array_like=True):
    """Read a LoRA adapter and serve it under a name; answered by `Done` or `Rejected`."""

    call_id: str
    name: str
    path: str
    replaces: bool = False  # another of that name, which its requests keep


class KvTransfers(msgspec.Struct, frozen=True, array_like=True):
    """How an engine gives its KV to others, and takes theirs."""

    host: str  # to listen on
    port: int  # 0: a free one
    lease_s: float  # how long KV waits to be fetched


class LoadProbe(msgspec.Struct, frozen=True, array_like=True):
    """That a model is to read a few words before it serves (load_checks.py)."""

    sha256: str  # of the model
    cache_dir: str  # where it is remembered that it passed
    refuses_noise: bool = False  # rather than warn


class EngineConfig(msgspec.Struct, frozen=True, tag="config", array_like=True):
    """What the engine process is to load; settings that are None are chosen from the machine."""

    model_path: str
    kv_tokens: int  # tokens of KV over all requests
    sequences_max: int  # requests that run at once
    step_rows: int  # tokens of one step
    waiting_max: int  # requests that wait at once
    cache_namespace: str
    threads: int | None = None
    context_length: int | None = None
    # 16 to 64 secret bytes under which blocks are named, shared with routers; None makes some up.
    prefix_key: bytes | None = None
    salt_tokens_max: int | None = None  # of reusable KV, that a tenant keeps; None: no limit
    step_timeout_s: float = 120.0  # without a step despite work, after which the engine is ended
    draft_tokens_max: int = 0  # guessed tokens of a request and step; 0 turns speculation off
    draft_model_path: str | None = None  # what guesses them; None: n-grams of the request's own
    target_step_s: float | None = None  # a prompt's chunk beside decodes is cut to this
    kv_cache_dtype: Literal["f16", "q8"] = "f16"
    activation_bits: ActivationBits = activation_bits_default  # beside quantized weights
    public_prompts: str | None = None  # whose KV all tenants share: a path, or their lines
    host_tokens: int = 0  # of preempted requests' KV, kept in host memory
    adapters_max: int = 0  # LoRA adapters loaded at once
    adapter_rank_max: int = 64
    adapters: tuple[LoadAdapter, ...] = ()  # that the start must load
    late_adapters: tuple[LoadAdapter, ...] = ()  # loaded later, and again after a restart if it can
    packed_path: str | None = None  # of the packed weights' file (weights/packed_cache.py)
    tensor_parallel: int = 1  # processes that run each layer together (engine/ranks.py)
    device_map: str | None = None  # which part is on which device (engine/placement.py)
    cpu_moe_layers: int = 0  # the first so many layers' experts are on any core
    draft_packed_path: str | None = None  # of the draft model's
    kv_transfers: KvTransfers | None = None  # None: KV neither leaves nor comes in
    chat_template_path: str | None = None  # in place of the model's own
    load_probe: LoadProbe | None = None  # None: the model is taken as it is


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """What an answer must look like."""

    kind: Literal["json_schema", "regex", "lark"]
    text: str
    param: str  # the request's field that it comes from, for errors


class ThoughtBudget(msgspec.Struct, frozen=True, array_like=True):
    """How long a model may think; the fields are those of the engine's own."""

    token_count: int
    closing_id: int
    opening_id: int | None = None


class KvSource(msgspec.Struct, frozen=True, array_like=True):
    """Where a prompt's KV waits."""

    transfer_id: str
    engine_id: str
    host: str  # empty: on this machine or nowhere
    port: int


class KvHandover(msgspec.Struct, frozen=True, array_like=True):
    """A prompt's KV that waits to be fetched."""

    transfer_id: str
    engine_id: str
    port: int
    block_ids: tuple[int, ...]


class Vocabulary(msgspec.Struct, frozen=True, tag="vocabulary", array_like=True):
    """What each token is as text, by which stop strings are found; sent before the requests."""

    texts: list[bytes]  # by token id
    control_ids: list[int]  # those that no answer shows, unless its request says so


class Submit(msgspec.Struct, frozen=True, tag="submit", array_like=True):
    """Start a request; the fields are those of EngineRequest and SamplingParams."""

    request_id: str
    prompt_token_ids: list[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    max_tokens: int
    min_tokens: int
    stop_token_ids: list[int]
    cache_salt: str
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    top_logprobs: int | None = None
    grammar: Grammar | None = None
    choice_count: int = 1  # outputs of each prompt
    more_prompts: tuple[tuple[int, ...], ...] = ()
    priority: int = 0  # a smaller number is a higher class; set for trusted callers only
    timeout_s: float | None = None  # from now on; what is unfinished then ends with `timeout`
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_breakers: tuple[int, ...] = ()
    thought_budget: ThoughtBudget | None = None
    typical_p: float = 1.0
    xtc_threshold: float = 0.1
    xtc_probability: float = 0.0
    adapter: str | None = None  # the name of a loaded one
    hands_over: bool = False  # its prompt's KV is to wait for another engine
    kv_source: KvSource | None = None  # where its prompt's KV waits
    stop_strings: tuple[str, ...] = ()
    shown_ids: tuple[int, ...] | None = ()  # control tokens that its text has; None: all

    @property
    def choices(self) -> int:
        """The outputs of all prompts: choice p * choice_count + i is the i-th of prompt p."""
        return self.choice_count * (1 + len(self.more_prompts))


class Abort(msgspec.Struct, frozen=True, tag="abort", array_like=True):
    """End a request, or one choice of it, with the next step."""

    request_id: str
    index: int | None = None


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter", array_like=True):
    """Serve an adapter no more; its memory is free once its requests have ended."""

    call_id: str
    name: str


class DiscardKv(msgspec.Struct, frozen=True, tag="discard_kv", array_like=True):
    """Give the memory of the KV cache back when no request runs; it is taken again when used."""

    call_id: str


class Embed(msgspec.Struct, frozen=True, tag="embed", array_like=True):
    """Make a vector of each text; only an embedding model is asked for it."""

    call_id: str
    token_ids: list[list[int]]


class AskStats(msgspec.Struct, frozen=True, tag="ask_stats", array_like=True):
    """Ask for one `Stats`."""


class ResetCache(msgspec.Struct, frozen=True, tag="reset_cache", array_like=True):
    """Forget what a salt's prompts left in the prefix cache; None: everyone's."""

    salt: str | None = None


class LoadedAdapter(msgspec.Struct, frozen=True, array_like=True):
    """An adapter that requests can ask for."""

    name: str
    path: str
    version: str  # the digest of its content
    rank: int
    byte_count: int


class Done(msgspec.Struct, frozen=True, tag="done", array_like=True):
    """A call was carried out; and which adapters are loaded now."""

    call_id: str
    adapters: list[LoadedAdapter]


class CacheChanges(msgspec.Struct, frozen=True, tag="cache_changes", array_like=True):
    """Blocks' hashes that became findable in the prefix cache (true), or are no more, in order."""

    changes: list[tuple[bool, bytes]]


class Embedded(msgspec.Struct, frozen=True, tag="embedded", array_like=True):
    """The texts' vectors, in their order, as this machine's 32-bit floats."""

    call_id: str
    vectors: list[bytes]


class Loading(msgspec.Struct, frozen=True, tag="loading", array_like=True):
    """Where the start has got to."""

    detail: str
    progress: float  # 0..1


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    """One real token was generated; requests may come."""

    context_length: int  # tokens of prompt and output together
    vocab_size: int
    kernel_name: str
    kv_blocks: int
    block_size_tokens: int
    dimensions: int | None = None  # of an embedding model's vectors; None: it generates text
    adapters: list[LoadedAdapter] = []
    remarks: list[str] = []  # what its operator should know
    activation_bits: int = 16  # 8 if some weights are multiplied with such


class Failed(msgspec.Struct, frozen=True, tag="failed", array_like=True):
    """The engine cannot start, and trying again would not help."""

    message: str


class Rejected(msgspec.Struct, frozen=True, tag="rejected", array_like=True):
    """A `Submit` was refused; the fields are those of HeadraceError."""

    request_id: str
    code: str
    message: str
    param: str | None
    retry_after_s: float | None
    fields: dict[str, int | float | str]


class Output(msgspec.Struct, frozen=True, array_like=True):
    """One choice's share of a step; the fields are those of RequestOutput and RequestUsage."""

    request_id: str
    token_ids: list[int]
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    error: str | None = None
    queue_s: float | None = None
    # For each of `token_ids`, if asked for: log-probability, and the likeliest tokens with theirs.
    logprobs: tuple[WireLogprobs, ...] = ()
    index: int = 0  # of the choice
    cumulative_logprob: float = 0.0  # of all tokens of the choice so far
    # Of a prompt's tokens but the first, once, with the first output of its first choice.
    prompt_logprobs: tuple[WireLogprobs, ...] = ()
    is_callers_error: bool = False  # `error` is the request's fault, and would come again
    accepted_drafts: int = 0
    refused_drafts: int = 0
    handover: KvHandover | None = None  # of a request that hands over, with its last output


class Outputs(msgspec.Struct, frozen=True, tag="outputs", array_like=True):
    """What one step produced."""

    outputs: list[Output]


class Stats(msgspec.Struct, frozen=True, tag="stats", array_like=True):
    """The engine's gauges and counters; the fields are those of EngineStats that /metrics shows."""

    running_requests: int = 0
    waiting_requests: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    completion_tokens_total: int = 0
    preemptions_total: int = 0
    leaked_blocks_total: int = 0
    recomputed_tokens_total: int = 0
    host_blocks: int = 0
    saved_tokens_total: int = 0
    restored_tokens_total: int = 0
    exported_tokens_total: int = 0
    imported_tokens_total: int = 0
    kv_transfers: dict[str, int] = {}
    waiting_by_reason: dict[str, int] = {}
    waiting_by_class: dict[str, int] = {}
    achieved_bytes_per_s: float = 0.0
    steps_total: int = 0
    step_seconds_total: float = 0.0
    scheduler_seconds_total: float = 0.0
    drafts_total: int = 0
    draft_seconds_total: float = 0.0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()


AdapterCall = LoadAdapter | UnloadAdapter
ToEngine = (
    EngineConfig
    | Vocabulary
    | Submit
    | Abort
    | AskStats
    | ResetCache
    | Embed
    | AdapterCall
    | DiscardKv
)
FromEngine = Loading | Ready | Failed | Rejected | Outputs | Stats | CacheChanges | Embedded | Done

_encoder = msgspec.msgpack.Encoder()


class BrokenFrame(ValueError):
    """The other process sent what no version of it sends."""


def encode_frame(message: ToEngine | FromEngine) -> bytes:
    """A message as one frame."""
    body = _encoder.encode(message)
    if len(body) > frame_bytes_max:
        raise BrokenFrame(f"a frame of {len(body)} bytes is over the bound of {frame_bytes_max}")
    return _length.pack(len(body)) + body


def rejection(request_id: str, error: HeadraceError) -> Rejected:
    """A refusal of a request or call, with what of the error's fields can be sent."""
    fields = {
        name: value for name, value in error.fields.items() if isinstance(value, fields_passed_on)
    }
    return Rejected(request_id, error.code, error.message, error.param, error.retry_after_s, fields)


class FrameBuffer:
    """Takes bytes as they arrive and gives whole frames' bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that `data` completes; BrokenFrame if one is over the bound."""
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(buffer) - start >= _length.size:
            (size,) = _length.unpack_from(buffer, start)
            if size > frame_bytes_max:
                raise BrokenFrame(f"a frame of {size} bytes is over the bound")
            end = start + _length.size + size
            if len(buffer) < end:
                break
            bodies.append(bytes(buffer[start + _length.size : end]))
            start = end
        del buffer[:start]
        return bodies
