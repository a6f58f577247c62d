"""Nodes from the command line: what is printed once, and what an agent refuses to begin with."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.fleet import control_arguments, node_listener, node_times
from headrace.cli.node import check_url, locked, membership, port_finder
from headrace.cli.nodes import labels_of
from headrace.http import server
from headrace.spec.token_format import node_tokens

from .conftest import RunningPlatform

Run = Callable[..., int]
token = node_tokens.format("nod_" + "0" * 26, b"s" * 32)


def test_a_token_is_printed_once(
    platform: RunningPlatform, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("nodes", "add", "gpu1", "--region", "eu", "--label", "disk=ssd") == 0
    told = capsys.readouterr()
    printed = told.out.split("token")[1].split()[0]
    assert node_tokens.parse(printed) is not None
    assert "not shown again" in told.err
    assert run("nodes", "list") == 0
    listed = capsys.readouterr().out
    assert "joining" in listed
    assert printed not in listed
    assert run("nodes", "drain", "gpu1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["draining"] is True
    assert run("nodes", "uncordon", "gpu1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["draining"] is False
    assert run("nodes", "remove", "gpu1") == 0
    assert run("nodes", "show", "gpu1") == 1


def test_an_agent_remembers_where_and_who(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    membership(path, ["https://one"], token)
    assert path.stat().st_mode & 0o777 == 0o600
    again = membership(path, None, None)
    assert (again.urls, again.token) == (["https://one"], token)
    assert membership(path, ["https://two"], None).urls == ["https://two"]
    with pytest.raises(ConfigurationError, match="nodes add"):
        membership(path, None, "hr_wrong")
    with pytest.raises(ConfigurationError, match="name the control plane"):
        membership(tmp_path / "new.json", None, token)


def test_a_token_crosses_no_network_in_clear() -> None:
    check_url("http://127.0.0.1:8081", plaintext=False)
    check_url("https://far:8082", plaintext=False)
    check_url("http://far:8082", plaintext=True)
    for url in ("http://far:8082", "ftp://x", "far:8082"):
        with pytest.raises(ConfigurationError):
            check_url(url, plaintext=False)
    assert node_listener(None, None, None, plaintext=False) is None
    assert node_listener("127.0.0.1:8082", None, None, plaintext=False) is not None
    assert node_listener("0.0.0.0:8082", None, None, plaintext=True) is not None
    for address in ("0.0.0.0:8082", "8082", "host:x"):
        with pytest.raises(ConfigurationError):
            node_listener(address, None, None, plaintext=False)


def test_two_agents_do_not_share_a_directory(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "lock"),
        pytest.raises(ConfigurationError, match="another agent"),
        locked(tmp_path / "lock"),
    ):
        raise AssertionError("both have it")


@pytest.mark.parametrize("ports", ["20000", "5-1", "0-9", "1-70000", "a-b"])
def test_a_range_of_ports_that_is_none_is_refused(ports: str) -> None:
    with pytest.raises(ConfigurationError, match="FIRST-LAST"):
        port_finder("127.0.0.1", ports)


def test_settings_that_make_no_sense_are_refused() -> None:
    for share, lost_s in ((0.0, 30.0), (1.5, 30.0), (0.3, 1.0)):
        with pytest.raises(ConfigurationError):
            node_times(share, lost_s)
    with pytest.raises(ConfigurationError, match="NAME=VALUE"):
        labels_of(["=x"])


def test_the_supervisor_passes_settings_of_nodes_on() -> None:
    told = control_arguments(
        "127.0.0.1:1", (None, None), plaintext=True, share=0.5, lost_after_s=9.0
    )
    assert told == (
        *("--node-listen", "127.0.0.1:1", "--node-freeze-share", "0.5"),
        *("--node-lost-after", "9.0", "--node-plaintext"),
    )


def test_an_address_for_nodes_that_is_taken_is_said_at_the_start() -> None:
    with server.bind("127.0.0.1", 0) as taken:
        _, port = server.address_of(taken)
        listener = node_listener(f"127.0.0.1:{port}", None, None, plaintext=False)
        assert listener is not None
        with pytest.raises(ConfigurationError, match="another process listens there"):
            listener.check()
    listener.check()
