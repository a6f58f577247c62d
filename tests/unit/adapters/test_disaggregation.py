"""How engines are started whose prompts' KV moves."""

import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.adapters.meeting import meeting_fields, meeting_port, rooms
from headrace.adapters.protocol import LaunchRequest
from headrace.adapters.registry import find_adapter
from headrace.base.errors import InvalidRequest
from headrace.spec.disaggregation import ReplicaRole

request = LaunchRequest(
    model_path="/m", served_model_name="m", host="127.0.0.1", port=9, api_key="k", moves_kv=True
)


def test_our_engine_hands_over_and_fetches() -> None:
    assert "--kv-transfer" in find_adapter("headrace").command(request).argv
    plain = replace(request, moves_kv=False)
    assert "--kv-transfer" not in find_adapter("headrace").command(plain).argv


def test_kv_moves_between_replicas_that_share_layers_over_devices() -> None:
    argv = find_adapter("headrace").command(replace(request, tensor_parallel=2)).argv
    assert "--kv-transfer" in argv
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"


def test_vllm_is_started_with_a_connector_and_a_side_channel_of_its_own() -> None:
    command = find_adapter("vllm").command(replace(request, kv_transfer_port=8001))
    told = command.argv[command.argv.index("--kv-transfer-config") + 1]
    assert json.loads(told) == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    assert command.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert command.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "8001"
    plain = find_adapter("vllm").command(replace(request, moves_kv=False))
    assert "--kv-transfer-config" not in plain.argv
    assert not any("NIXL" in name for name in plain.environment)


def test_two_vllms_of_one_machine_have_two_side_channels() -> None:
    ports = {
        find_adapter("vllm")
        .command(replace(request, port=port))
        .environment["VLLM_NIXL_SIDE_CHANNEL_PORT"]
        for port in (8000, 8001, 60_000)
    }
    assert ports == {"28000", "28001", "40000"}


def half(role: ReplicaRole, **changes: Any) -> str:
    command = find_adapter("sglang").command(replace(request, role=role, **changes))
    return " ".join(command.argv)


def test_an_sglang_is_started_as_its_half() -> None:
    decode = half(ReplicaRole.DECODE)
    assert decode.endswith("--disaggregation-mode decode")
    given = half(ReplicaRole.PREFILL, kv_transfer_port=8001)
    assert given.endswith("--disaggregation-mode prefill --disaggregation-bootstrap-port 8001")
    derived = half(ReplicaRole.PREFILL, port=8000)
    assert derived.endswith("--disaggregation-bootstrap-port 28000")
    assert "--disaggregation" not in half(ReplicaRole.WHOLE)
    assert "--disaggregation" not in half(ReplicaRole.PREFILL, moves_kv=False)


def test_which_half_it_is_decides_the_platform() -> None:
    with pytest.raises(InvalidRequest, match="disaggregation-mode"):
        half(ReplicaRole.DECODE, extra_arguments=("--disaggregation-mode", "null"))


@pytest.mark.parametrize("given", [0, 8001])
def test_two_halves_meet_where_the_first_was_told_to_wait(given: int) -> None:
    fields = meeting_fields("http://10.0.0.7:8000", given, rooms - 1)
    assert fields == {
        "bootstrap_host": "10.0.0.7",
        "bootstrap_port": meeting_port(8000, given),
        "bootstrap_room": rooms - 1,
    }
