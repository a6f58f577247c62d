"""How engines are started whose prompts' KV moves."""

from dataclasses import replace

import pytest

from headrace.adapters.protocol import LaunchRequest
from headrace.adapters.registry import find_adapter
from headrace.base.errors import InvalidRequest

request = LaunchRequest(
    model_path="/m", served_model_name="m", host="127.0.0.1", port=9, api_key="k", moves_kv=True
)


def test_our_engine_hands_over_and_fetches() -> None:
    assert "--kv-transfer" in find_adapter("headrace").command(request).argv
    plain = replace(request, moves_kv=False)
    assert "--kv-transfer" not in find_adapter("headrace").command(plain).argv


def test_layers_shared_over_devices_and_moving_kv_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="disaggregation"):
        find_adapter("headrace").command(replace(request, tensor_parallel=2))
