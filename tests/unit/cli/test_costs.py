"""`headrace costs` against a real admin API."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.spec.costs import DeviceUse

from .conftest import RunningPlatform

Run = Callable[..., int]


def test_costs_follow_from_device_hours_and_prices(
    platform: RunningPlatform, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("costs", "show", "--month", "2027-01") == 0
    assert "no device was held" in capsys.readouterr().out
    used = DeviceUse(
        day="2027-01-15",
        replica_id="rep_1",
        device_type="CPU",
        deployment_id="dep_gone",
        model="small",
        held_s=7200.0,
        busy_s=1800.0,
    )
    platform.database.device_uses.add([used])
    assert run("costs", "show", "--month", "2027-01", "--by", "tenant") == 0
    assert "counted as free: CPU" in capsys.readouterr().err
    file = tmp_path / "devices.yaml"
    file.write_text("effective_time: 2027-01-01T00:00:00Z\nprices: {CPU: {usd_per_hour: '0.50'}}\n")
    assert run("costs", "prices", "-f", str(file)) == 0
    assert "$0.50 an hour" in capsys.readouterr().out
    assert run("costs", "show", "--month", "2027-01", "--by", "deployment") == 0
    shown = capsys.readouterr()
    assert "counted as free" not in shown.err
    assert "25%" in shown.out
    assert run("costs", "show", "--month", "2027-01", "--json") == 0
    costs = json.loads(capsys.readouterr().out)
    assert (costs["total"]["cost"]["usd"], costs["total"]["idle_cost"]["usd"]) == ("1.00", "0.75")
    assert costs["tenants"] == [{**costs["tenants"][0], "id": None, "name": "nobody"}], (
        "nobody used it"
    )
    assert run("costs", "prices") == 0
    assert "CPU" in capsys.readouterr().out


def test_a_period_is_needed(
    platform: RunningPlatform, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert platform.url
    assert run("costs", "show") == 1
    assert "give `month`" in capsys.readouterr().err
