"""`headrace place`: a described cluster in, places and reasons out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., int]
cluster = """
nodes:
  - {name: a, devices: [{type: H100, memory_gib: 80, count: 8, islands: [4, 4]}]}
  - {name: b, devices: [{type: L4, memory_gib: 24, count: 2}], closed: cordoned}
deployments:
  - {name: large, replicas: 2, options: [{devices: 4, memory_gib: 70}], priority: 10}
  - {name: small, replicas: 2, options: [{devices: 1, memory_gib: 8}]}
running:
  - {replica: small-0, deployment: small, node: a, devices: [H100-0], memory_gib: 8}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(cluster)
    return path


def test_priority_takes_whole_islands_and_the_rest_is_told_why(
    run: Run, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("place", "-f", str(file), "--json") == 0
    said = json.loads(capsys.readouterr().out)
    places = {each["replica"]: each["device_ids"] for each in said["schedule"]["assignments"]}
    assert sorted(places) == ["large-0", "large-1"]
    assert sorted(map(len, places.values())) == [4, 4]
    assert [each["replica"] for each in said["schedule"]["preempted"]] == ["small-0"]
    reasons = {each["node_id"]: each["reason"] for each in said["queued_because"]["small"]}
    assert "cordoned" in reasons["b"]
    assert reasons["a"]


def test_people_get_a_table(run: Run, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("place", "-f", str(file)) == 0
    written = capsys.readouterr()
    assert "large-0" in written.out
    assert "small-0 on a is ended for a higher priority" in written.err
    assert "small-1 wait:" in written.err


def test_a_wrong_field_is_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: []\ndeployments: [{name: a, options: [{device: 1}]}]")
    assert run("place", "-f", str(path)) == 1
    assert "is not a cluster" in capsys.readouterr().err
