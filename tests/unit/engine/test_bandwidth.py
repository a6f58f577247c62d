import dataclasses

import pytest

from headrace.engine.bandwidth import Bandwidth
from headrace.sim.runner import FakeModel, FakeRunner

info = FakeRunner(FakeModel(10), num_blocks=4).info


def test_steps_read_the_weights_once_and_the_kv_of_every_context() -> None:
    bandwidth = Bandwidth(dataclasses.replace(info, weight_bytes=1000, kv_token_bytes=10))
    assert bandwidth.bytes_per_s == 0
    for _ in range(3):
        bandwidth.record(50, 0.5)
    assert bandwidth.bytes_per_s == pytest.approx(3000)
    for _ in range(200):
        bandwidth.record(0, 0.5)
    assert bandwidth.bytes_per_s == pytest.approx(2000, rel=1e-3)


def test_a_runner_that_says_nothing_gives_nothing() -> None:
    bandwidth = Bandwidth(info)
    bandwidth.record(50, 0.5)
    assert bandwidth.bytes_per_s == 0
