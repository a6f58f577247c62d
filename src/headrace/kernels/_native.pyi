from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

_Argument = TypeVar("_Argument")

class CpuTransformer:
    """Weights, KV cache and scratch of one model on the CPU."""

    def __init__(
        self,
        *,
        spec: object,  # an ArchitectureSpec
        # window (0 is none), rotation (-1 is none), its device and its experts' device
        layers: Sequence[tuple[int, int, int, int]],
        rotations: Sequence[tuple[Sequence[float], float]],  # frequencies and magnitude
        tensors: Mapping[  # type, shape, data or what makes it
            str,
            tuple[int, tuple[int, ...], NDArray[np.uint8] | Callable[[], NDArray[np.uint8]]],
        ],
        num_blocks: int,
        rows_max: int,
        sequences_max: int,
        devices: Sequence[tuple[Sequence[int], int]],  # cores (none: any) and threads of each
        isa_limit: str,
        kv_type: str = "f16",
        adapter_slots: int = 0,
        adapter_rank_max: int = 0,
        packed_path: str = "",  # of the packed weights' file; empty keeps them in memory only
        rank: int = 0,  # of so many processes that run the model together
        ranks: int = 1,
        group_descriptor: int = -1,  # of the file whose memory they share
        activation_bits: int = 16,  # 16 or 8, beside 4-bit weights
    ) -> None: ...
    def execute(
        self,
        token_ids: NDArray[np.int32],
        row_starts: NDArray[np.int32],
        context_lens: NDArray[np.int32],
        block_ids: NDArray[np.int32],
        block_starts: NDArray[np.int32],
        sampled: NDArray[np.int32],
        temperature: NDArray[np.float32],
        top_k: NDArray[np.int32],
        top_p: NDArray[np.float32],
        min_p: NDArray[np.float32],
        seed: NDArray[np.uint64],
        position: NDArray[np.int64],
        out_token_ids: NDArray[np.int32],
        out_logprobs: NDArray[np.float32],
        out_logits: NDArray[np.float32] | None = None,
        edits: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]
        | None = None,
        masks: tuple[NDArray[np.int32], NDArray[np.uint32]] | None = None,
        top: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]] | None = None,
        out_hidden: NDArray[np.float32] | None = None,
        filters: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]] | None = None,
        adapters: NDArray[np.int32] | None = None,
    ) -> None: ...
    def load_adapter(
        self,
        slot: int,
        parts: Sequence[  # layer, target, scale, then A and B as type, shape, data
            tuple[
                int,
                int,
                float,
                tuple[int, tuple[int, ...], NDArray[np.uint8]],
                tuple[int, tuple[int, ...], NDArray[np.uint8]],
            ]
        ],
    ) -> None: ...
    def unload_adapter(self, slot: int) -> None: ...
    def discard_kv(self) -> None: ...
    def serve(self) -> None:
        """Take part in rank 0's calls until it is gone; for the other ranks."""

    def check_packed(self, byte_count: int) -> Literal["more", "sound", "damaged"]:
        """Compare the next bytes of mapped weights with their checksums; for one thread.

        A damaged file is removed."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None: ...
    def export_blocks(self, block_ids: Sequence[int]) -> bytes: ...
    def import_blocks(self, block_ids: Sequence[int], data: bytes) -> None: ...
    @property
    def kernel_name(self) -> str: ...
    @property
    def activation_bits(self) -> int:
        """8 if any of the matrices is multiplied with 8-bit activations, else 16."""

    @property
    def max_model_len(self) -> int: ...
    @property
    def device_weight_bytes(self) -> list[int]: ...
    @property
    def kv_bytes(self) -> int: ...

def packed_layout() -> str:
    """Names how this build lays packed weights out; another layout's files are not read."""

def cpu_features() -> list[str]: ...
def kernel_name(isa_limit: str) -> str: ...
def has_fours(isa_limit: str, activation_bits: int) -> bool: ...
def measure_read_bandwidth(threads: int, byte_count: int, repeats: int) -> float: ...
def measure_matrix_rate(
    threads: int, repeats: int, isa_limit: str, activation_bits: int = 16
) -> float: ...
def matmul(
    ggml_type: int,
    weights: NDArray[np.uint8],
    rows: NDArray[np.float32],
    out: NDArray[np.float32],
    isa_limit: str,
    activation_bits: int = 16,
) -> None: ...
def read_row(
    ggml_type: int,
    weights: NDArray[np.uint8],
    outputs: int,
    index: int,
    out: NDArray[np.float32],
) -> None: ...
def rms_norm(
    row: NDArray[np.float32],
    weight: NDArray[np.float32],
    epsilon: float,
    out: NDArray[np.float32],
    isa_limit: str,
) -> None: ...
def swiglu(
    gate: NDArray[np.float32], up: NDArray[np.float32], out: NDArray[np.float32], isa_limit: str
) -> None: ...
def rotate(
    head: NDArray[np.float32],
    adjacent: bool,
    cosine: NDArray[np.float32],
    sine: NDArray[np.float32],
    isa_limit: str,
) -> None: ...
def attention(
    queries: NDArray[np.float32],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    block_ids: NDArray[np.int32],
    out: NDArray[np.float32],
    isa_limit: str,
    kv_type: str = "f16",
) -> None: ...
def sample(
    logits: NDArray[np.float32],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    position: int,
    edit_ids: NDArray[np.int32],
    edit_factors: NDArray[np.float32],
    edit_addends: NDArray[np.float32],
    mask: NDArray[np.uint32] | None,
    top_count: int,
    isa_limit: str,
    typical_p: float = 1.0,
    xtc_threshold: float = 1.0,
    xtc_probability: float = 0.0,
) -> tuple[int, float, list[int], list[float]]: ...

class SimLoop:
    """The clock of a simulation: `headrace.sim.fleet.event_loop` has the rules."""

    now_s: float
    def __init__(self, message_delay_s: float, wall_start_s: float) -> None: ...
    def at(self, time_s: float, call: Callable[[_Argument], None], argument: _Argument) -> None: ...
    def after(
        self, delay_s: float, call: Callable[[_Argument], None], argument: _Argument
    ) -> None: ...
    @property
    def is_last_of_moment(self) -> bool: ...
    @property
    def events_total(self) -> int: ...
    @property
    def pending_count(self) -> int: ...
    def check_after_each(self, check: Callable[[], None]) -> None: ...
    def run(self, until_s: float = ..., events_max: int | None = None) -> None: ...
    def monotonic_s(self) -> float: ...
    def set_wall(self, jump_s: float) -> None: ...
    def wall_s(self) -> float: ...

class SimHistogram:
    """Weights by logarithm of the value: `headrace.sim.fleet.histogram` has the rules."""

    def __init__(self) -> None: ...
    def add(self, value_s: float, weight: float = 1.0) -> None: ...
    @property
    def weight(self) -> float: ...
    @property
    def mean(self) -> float: ...
    def percentile(self, percent: float) -> float: ...

class SimShapes:
    """Draws of a stream of requests: `headrace.sim.fleet.shapes` has the rules."""

    def __init__(self, state: tuple[int, ...], fresh: object, output: object) -> None: ...
    def fresh_tokens(self) -> int: ...
    def output_tokens(self) -> int: ...
    def below(self, count: int) -> int: ...
    def random(self) -> float: ...

class SimEngines:
    """What all engines of a simulated fleet share."""

    def __init__(
        self,
        loop: object,  # a SimLoop
        device: object,  # a DeviceModel
        listener: object,  # has first_token(attempt) and finished(attempt)
        gaps: object,  # a SimHistogram
        scheduling: object,  # has the real scheduler's numbers
        prefix_cache: bool,
    ) -> None: ...

class SimEngine:
    """The aggregate engine: `headrace.sim.fleet.aggregate_engine` has the model."""

    def __init__(self, engines: SimEngines) -> None: ...
    def submit(self, attempt: object) -> None: ...
    def abort(self, attempt: object) -> None: ...
    def load(self) -> tuple[int, int]: ...
    def known_tokens(self, prefix: object) -> int: ...
    def slow_down(self, factor: float) -> None: ...
    def halt(self) -> None: ...
    @property
    def free_tokens(self) -> int: ...
    @property
    def preemption_count(self) -> int: ...
