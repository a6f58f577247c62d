"""What is known of a kind of engine without asking it: names, abilities, and how sure we are.

The reference page docs/reference/engines.md is made of these (`headrace.adapters.reference_page`).
"""

from dataclasses import dataclass
from enum import StrEnum


class Start(StrEnum):
    """Who brings the engine up."""

    PROCESS = "by a launcher, from the adapter's command"
    EXTERNAL = "by others; it is reached at an address"


class Evidence(StrEnum):
    """How an adapter was tested."""

    REAL = "the real engine, as a process behind the gateway"
    REPLAYED = "replayed exchanges made from its documents; the engine itself never ran"


class Ability(StrEnum):
    """What an engine may offer, in the words of the reference page."""

    CHAT = "chat completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "Anthropic messages"
    EMBEDDINGS = "embeddings"
    TOOLS = "tools"
    FORCED_TOOLS = "required and named tool choice"
    JSON_SCHEMA = "JSON schema"
    LOGPROBS = "logprobs"
    LORA = "LoRA adapters"
    VISION = "images"
    TENSOR_PARALLEL = "tensor parallel"
    SEVERAL_NODES = "several nodes"
    PREFIX_CACHE = "prefix cache"
    PREFIX_SALT = "prefix cache apart by tenant"
    KV_EVENTS = "KV events"


class StreamUsage(StrEnum):
    """What a stream tells of its use: decides what an abort is billed by."""

    EVERY_CHUNK = "in every chunk"
    AT_END = "at its end"
    NEVER = "not at all"


class Abort(StrEnum):
    """How a request that nobody waits for is ended."""

    DISCONNECT = "closing the connection"
    DISCONNECT_LATE = "closing the connection; seen at the next write"
    NONE = "not at all; it runs to its end, and is read to it"


class LoraChoice(StrEnum):
    """How a request asks for one of the LoRA adapters that an engine was started with."""

    MODEL_AND_NAME = "`model` is MODEL:NAME"
    NAME = "`model` is NAME"
    PATH_FIELD = "`lora_path` is NAME"
    SCALES = "`lora` has its number and scale"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One kind of engine. `notes` is its module's docstring, with the table of known traps."""

    title: str
    start: Start
    evidence: Evidence
    version_read: str  # of the sources and documents that the adapter was written from
    abilities: frozenset[Ability]
    stream_usage: StreamUsage
    abort: Abort
    authenticates: bool  # whether a key that we choose is asked for
    tests: str = "tests/contract/test_adapter.py"
    package: str = ""  # where it comes from: a package
    image: str = ""  # or a container image
    listens_while_loading: bool = False
    checks_context: bool = True  # it refuses or ends a request that its context does not hold
    tells_hang: bool = False  # its readiness says so when it makes no step
    publishes_kv_events: bool = False  # by ZeroMQ, where it was told to (adapters/kv_messages.py)
    kv_events_path: str = ""  # where it tells how its prefix cache changes (prefix-cache.md)
    moves_kv: bool = False  # we start it so that prompts' KV goes between its replicas
    roles_are_fixed: bool = False  # which part is whose is an argument of their start (`meeting`)
    shares_prompts: bool = False  # it is told which prompts tenants share (spec/public_prompts.py)
    lora: LoraChoice | None = None  # None: it is given none
    is_paid: bool = False  # others bill its tokens: it is asked for none that nobody wants
    notes: str = ""
