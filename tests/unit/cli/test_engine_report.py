"""What `headrace bench engine` finds, as shares of the machine's rates."""

import json

import pytest

from headrace.cli import output
from headrace.cli.engine_report import (
    EngineBench,
    MachineRates,
    Sizes,
    decode_result,
    prefill_result,
    write_report,
)
from headrace.cli.engine_timing import Timing
from headrace.cli.engine_work import ModelWork

work = ModelWork(
    matrix_bytes=50_000_000,
    layer_weights=90_000_000,
    output_weights=10_000_000,
    kv_bytes_per_token=10_000,
)
rates = MachineRates(memory_gbps=10.0, matrix_gops=100.0)
sizes = Sizes(prompts=[100], batches=[1, 4], context_tokens=96, steps=4, repeats=1, rows_max=512)


def test_prefill_share_is_of_the_integer_rate() -> None:
    result = prefill_result(Timing(seconds=0.5, token_count=100), work, rates)
    assert result.tokens_per_s == 200
    assert result.matrix_share == pytest.approx(2 * (9e9 + 1e7) / 0.5 / 100e9)


def test_decode_share_is_of_the_bandwidth_and_counts_every_context() -> None:
    result = decode_result(Timing(seconds=0.01, token_count=4), sizes, work, rates)
    assert result.tokens_per_s == 400
    assert result.step_bytes == 50_000_000 + 4 * 100 * 10_000
    assert result.bandwidth_share == pytest.approx(54e6 / 0.01 / 10e9)


def test_kv_room_holds_the_largest_of_both_kinds_of_work() -> None:
    assert sizes.kv_tokens >= 4 * (96 + 4 + 2)
    assert sizes.tokens_per_sequence == 102


def test_the_report_and_the_json_hold_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    result = EngineBench(
        model="small",
        kernel="avx2",
        activation_bits=8,
        threads=2,
        matrix_bytes=work.matrix_bytes,
        weights=100_000_000,
        machine=rates,
        prefill=[prefill_result(Timing(0.5, 100), work, rates)],
        decode=[decode_result(Timing(0.01, 4), sizes, work, rates)],
    )
    write_report(result)
    report = capsys.readouterr().out
    for text in ("small", "avx2", "8-bit activations", "200.0", "400.0", "54%"):
        assert text in report
    output.write_json(result)
    assert json.loads(capsys.readouterr().out)["decode"][0]["batch"] == 4
