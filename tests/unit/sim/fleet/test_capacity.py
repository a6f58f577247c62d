"""How many devices a traffic needs: the search, the devices' models, the command."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import InvalidRequest
from headrace.cli.main import main as headrace
from headrace.control.planning.known_shapes import find_shape
from headrace.control.planning.precision import find_precision
from headrace.sim.fleet.capacity import Point, fewest
from headrace.sim.fleet.device_speeds import derive

small = """
title = "a little chat"
duration_s = 20.0
[fleet]
replicas = 1
[device]
source = "made up"
fixed_s = 0.001
weights_s = 0.005
row_s = 1e-4
kv_tokens = 20000
[[traffic]]
name = "chat"
rate_per_s = 20.0
fresh = { median = 400, p90 = 900 }
output = { median = 60, p90 = 150 }
[objective]
ttft_s = 0.5
tpot_s = 0.03
"""


def main(arguments: list[str]) -> int:
    """Run one command in this process and return its exit status."""
    try:
        return headrace(arguments)
    except SystemExit as leaving:
        return int(leaving.code or 0)


@given(st.integers(1, 5000))
def test_the_fewest_replicas_are_found(needed: int) -> None:
    tried = []

    def attempt(replicas: int) -> Point:
        tried.append(replicas)
        return Point(
            replicas=replicas,
            objective_share=1.0 if replicas >= needed else 0.5,
            ttft_p90_s=0.0,
            ttft_p99_s=0.0,
            output_tokens_per_s=0.0,
        )

    found, points = fewest(attempt, 0.99)
    assert found == needed
    assert [point.replicas for point in points] == sorted(set(tried))
    assert len(tried) == len(set(tried)) <= 27


def test_a_model_takes_as_many_devices_as_hold_it() -> None:
    shape = find_shape("llama-3.1-70b")
    half, whole = find_precision("fp8"), find_precision("bf16")
    assert derive(shape, half, "H200", 8192).devices == 1
    assert derive(shape, whole, "H100", 8192).devices == 4
    one = derive(shape, half, "H200", 8192).model
    assert one.weights_s == pytest.approx(70.6e9 / (4.8e12 * 0.8), rel=0.05)
    with pytest.raises(InvalidRequest, match="does not fit"):
        derive(find_shape("deepseek-v3"), whole, "H100", 8192)
    with pytest.raises(InvalidRequest, match="speed"):
        derive(shape, half, "V100:32GB", 8192)


def test_the_command_finds_a_fleet_and_draws_the_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chat.toml"
    file.write_text(small)
    assert main(["capacity", str(file), "--json"]) == 0
    [need] = json.loads(capsys.readouterr().out)
    shares = {point["replicas"]: point["objective_share"] for point in need["points"]}
    assert shares[need["replicas"]] >= 0.99 > shares[need["replicas"] - 1]

    chosen = ("--model", "smollm2-1.7b", "--device", "L4=0.5", "--device", "H100=2.5")
    plot = tmp_path / "curve.svg"
    assert main(["capacity", str(file), *chosen, "--plot", str(plot)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["L4", "H100"], "the cheapest comes first"
    assert "requests within the objective" in plot.read_text()


def test_traffic_and_an_objective_are_enough_for_a_known_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "traffic.toml"
    file.write_text("duration_s = 10.0\n" + small[small.index("[[traffic]]") :])
    chosen = ("--model", "smollm2-1.7b", "--device", "L4=0.5")
    assert main(["capacity", str(file), *chosen, "--json"]) == 0
    [need] = json.loads(capsys.readouterr().out)
    assert need["device"] == "L4"
    assert need["usd_per_hour"] == need["devices"] * 0.5
    assert main(["capacity", str(file)]) == 1
    assert "give --model and --device, or add a [device]" in capsys.readouterr().err
    assert main(["sim", "run", str(file)]) == 1
    assert "missing required field" in capsys.readouterr().err


def test_a_device_on_which_one_request_is_too_slow_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chat.toml"
    file.write_text(small.replace("tpot_s = 0.03", "tpot_s = 0.003"))
    assert main(["capacity", str(file)]) == 0
    assert "too slow" in capsys.readouterr().out
    assert main(["capacity", str(file), "--model", "smollm2-1.7b"]) == 1
    assert "--device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "wrong", "field"),
    [
        ("rate_per_s = 20.0", "rate_per_s = 0.0", "rate_per_s"),
        ("duration_s = 20.0", "duration_s = -1.0", "duration_s"),
        ("rate_per_s = 20.0", 'rate_per_s = 20.0\narrivals = "gamma"\nburstiness = 0.0', "burst"),
        ("rate_per_s = 20.0", "rate_per_s = 20.0\nmax_tokens = 0", "max_tokens"),
        ("rate_per_s = 20.0", "rate_per_s = 20.0\ntenants = 0", "tenants"),
        ("ttft_s = 0.5", "ttft_s = 0.0", "ttft_s"),
    ],
)
def test_a_number_that_no_traffic_has_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, wrong: str, field: str
) -> None:
    path = tmp_path / "traffic.toml"
    path.write_text(small.replace(line, wrong))
    assert main(["capacity", str(path)]) == 1
    assert field in capsys.readouterr().err


def test_too_few_requests_to_tell_the_target_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "traffic.toml"
    path.write_text(small.replace("rate_per_s = 20.0", "rate_per_s = 0.2"))
    assert main(["capacity", str(path)]) == 1
    assert "about 4 requests come in 20 s" in capsys.readouterr().err


@pytest.mark.parametrize("price", ["-1", "nan", "inf", "much"])
def test_a_price_is_dollars_an_hour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], price: str
) -> None:
    path = tmp_path / "traffic.toml"
    path.write_text(small)
    assert main(["capacity", str(path), "--model", "qwen3-0.6b", "--device", f"L4={price}"]) == 1
    assert "dollars an hour" in capsys.readouterr().err
