"""What `headrace bench engine` found: times as rates and as shares of the machine's own."""

import msgspec

from headrace.cli import output
from headrace.cli.engine_timing import Timing, warm_up_steps
from headrace.cli.engine_work import ModelWork

block_slack = 64  # a sequence's last block may be part empty


class MachineRates(msgspec.Struct, frozen=True):
    """The most that this machine does, with as many threads."""

    memory_gbps: float  # 10^9 bytes read a second
    matrix_gops: float  # 10^9 operations a second, two a multiply-add


class PrefillResult(msgspec.Struct, frozen=True):
    """One prompt length."""

    prompt_tokens: int
    seconds: float
    tokens_per_s: float
    matrix_share: float  # of the machine's integer rate


class DecodeResult(msgspec.Struct, frozen=True):
    """One number of sequences."""

    batch: int
    context_tokens: int
    step_ms: float
    tokens_per_s: float
    step_bytes: int
    bandwidth_share: float  # of the machine's read bandwidth
    matrix_share: float


class EngineBench(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run saw."""

    model: str
    kernel: str
    activation_bits: int
    threads: int
    matrix_bytes: int
    weights: int
    machine: MachineRates
    prefill: list[PrefillResult]
    decode: list[DecodeResult]


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What to time."""

    prompts: list[int]
    batches: list[int]
    context_tokens: int
    steps: int
    repeats: int
    rows_max: int

    @property
    def tokens_per_sequence(self) -> int:
        """KV room that the longest sequence needs."""
        return max(*self.prompts, self.context_tokens + self.steps + warm_up_steps)

    @property
    def kv_tokens(self) -> int:
        """KV room in all, a block to spare for each sequence."""
        decode = max(self.batches) * (
            self.context_tokens + self.steps + warm_up_steps + block_slack
        )
        return max(decode, max(self.prompts) + block_slack)


def prefill_result(timing: Timing, work: ModelWork, rates: MachineRates) -> PrefillResult:
    """One prompt's time as rate and share."""
    operations = work.operations(timing.token_count, 1)
    return PrefillResult(
        prompt_tokens=timing.token_count,
        seconds=timing.seconds,
        tokens_per_s=timing.tokens_per_s,
        matrix_share=operations / timing.seconds / (rates.matrix_gops * 1e9),
    )


def decode_result(
    timing: Timing, sizes: Sizes, work: ModelWork, rates: MachineRates
) -> DecodeResult:
    """One step's time as rate and shares."""
    batch = timing.token_count
    context = sizes.context_tokens + warm_up_steps + sizes.steps // 2  # as it was on average
    step_bytes = work.step_bytes(batch, context)
    operations = work.operations(batch, batch)
    return DecodeResult(
        batch=batch,
        context_tokens=sizes.context_tokens,
        step_ms=timing.seconds * 1e3,
        tokens_per_s=timing.tokens_per_s,
        step_bytes=step_bytes,
        bandwidth_share=step_bytes / timing.seconds / (rates.memory_gbps * 1e9),
        matrix_share=operations / timing.seconds / (rates.matrix_gops * 1e9),
    )


def write_report(result: EngineBench) -> None:
    """Write the machine, then a table of each kind of work."""
    rates = result.machine
    output.write_fields(
        [
            (
                "model",
                f"{result.model}, {result.weights / 1e6:.0f} M weights in matrices, "
                f"{output.format_bytes(result.matrix_bytes)}",
            ),
            (
                "kernels",
                f"{result.kernel}, {result.threads} threads, "
                f"{result.activation_bits}-bit activations",
            ),
            (
                "machine",
                f"reads {rates.memory_gbps:.1f} GB/s, {rates.matrix_gops:.0f} G operations/s",
            ),
        ]
    )
    print()
    output.write_table(
        (">PROMPT", ">TOKENS/S", ">SECONDS", ">INT8 RATE"),
        [
            (
                str(row.prompt_tokens),
                f"{row.tokens_per_s:.1f}",
                f"{row.seconds:.3f}",
                f"{row.matrix_share:.0%}",
            )
            for row in result.prefill
        ],
        empty="",
    )
    print()
    output.write_table(
        (">BATCH", ">TOKENS/S", ">STEP MS", ">BANDWIDTH", ">INT8 RATE"),
        [
            (
                str(row.batch),
                f"{row.tokens_per_s:.1f}",
                f"{row.step_ms:.2f}",
                f"{row.bandwidth_share:.0%}",
                f"{row.matrix_share:.0%}",
            )
            for row in result.decode
        ],
        empty="",
    )
