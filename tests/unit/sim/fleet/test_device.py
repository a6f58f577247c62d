"""The time model of a device: the roofline, and measured points in its place."""

from typing import Any

import msgspec
import pytest

from headrace.sim.fleet.device import DeviceModel


def device_of(**fields: Any) -> DeviceModel:
    return DeviceModel(source="test", fixed_s=0.5, kv_tokens=1024, **fields)


def test_a_step_waits_for_weights_or_for_arithmetic() -> None:
    device = device_of(weights_s=4.0, row_s=1.0)
    assert [device.step_s(rows, 0, 0.0, 0.0) for rows in (1, 4, 6)] == [4.5, 4.5, 6.5]


def test_measured_points_are_joined_by_lines_and_continued_beyond_the_last() -> None:
    device = device_of(matrix_points=((1, 4.0), (2, 4.5), (10, 12.5)))
    assert [device.step_s(rows, 0, 0.0, 0.0) for rows in (1, 2, 6, 10, 12)] == [
        4.5,
        5.0,
        9.0,
        13.0,
        15.0,
    ]


def test_a_slowed_device_takes_as_many_times_as_long_whatever_it_does() -> None:
    for device in (
        device_of(weights_s=4.0, row_s=1.0, sequence_s=0.1, context_token_s=0.01, pair_s=0.001),
        device_of(matrix_points=((1, 4.0), (2, 4.5)), sequence_s=0.1, pair_s=0.001),
    ):
        took = device.step_s(7, 3, 100.0, 50.0)
        assert device.slowed(4.0).step_s(7, 3, 100.0, 50.0) == pytest.approx(4 * took)


@pytest.mark.parametrize(
    "fields",
    [{}, {"matrix_points": [[1, 1.0]]}, {"matrix_points": [[2, 1.0], [1, 2.0]]}],
)
def test_a_device_without_a_usable_time_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"source": "", "fixed_s": 1.0, "kv_tokens": 9, **fields}, DeviceModel)
