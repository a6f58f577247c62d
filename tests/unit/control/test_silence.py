"""Much silence at once is this side's."""

import pytest

from headrace.control.silence import SilenceWatch


@pytest.mark.parametrize(
    ("silent", "serving", "suspicious"),
    [(2, 2, False), (3, 3, True), (3, 10, False), (4, 10, True), (30, 100, False), (31, 100, True)],
)
def test_suspicion_needs_a_share_and_a_number(silent: int, serving: int, suspicious: bool) -> None:
    watch = SilenceWatch()
    for number in range(serving):
        watch.note(f"rep_{number}", is_silent=number < silent)
    assert watch.is_suspicious is suspicious
    watch.keep_only(set())
    assert not watch.is_suspicious
