from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import RateLimited
from headrace.sim.fleet.attempt import Attempt
from headrace.sim.fleet.device import DeviceModel
from headrace.sim.fleet.event_loop import EventLoop
from headrace.sim.fleet.exact_engine import ExactEngine
from headrace.sim.fleet.histogram import Histogram

MakeAttempt = Callable[..., Attempt]


@pytest.fixture
def loop() -> EventLoop:
    return EventLoop()


def test_one_request_takes_what_the_device_model_says(
    loop: EventLoop, device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    told, gaps = recorder_type(loop), Histogram()
    engine = ExactEngine(loop, device, told, gaps)
    engine.submit(attempt_of(1, [(5, 300)], 10))
    loop.run()
    first = device.step_s(256, 1, 256, 256 * 128)
    second = device.step_s(44, 1, 300, 44 * 278)
    decodes = sum(device.step_s(1, 1, 301 + index, 0) for index in range(10))  # the stop token too
    assert told.first_s[1] == pytest.approx(first + second)
    assert told.end_s[1] == pytest.approx(first + second + decodes)
    assert gaps.weight == 9
    assert engine.stats().completion_tokens_total == 10
    engine.core.check_invariants()


def test_a_shared_prefix_is_computed_once(
    loop: EventLoop, device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    told = recorder_type(loop)
    engine = ExactEngine(loop, device, told, Histogram())
    first, second = attempt_of(1, [(5, 1600), (6, 50)], 4), attempt_of(2, [(5, 1600), (7, 50)], 4)
    engine.submit(first)
    loop.at(1.0, engine.submit, second)
    loop.run()
    assert first.cached_tokens == 0
    assert second.cached_tokens == 1600
    assert told.first_s[2] - 1.0 < told.first_s[1] / 3


def test_the_next_prompt_of_a_conversation_finds_the_answer_in_the_cache(
    loop: EventLoop, device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    engine = ExactEngine(loop, device, recorder_type(loop), Histogram())
    engine.submit(attempt_of(1, [(5, 160)], 64))
    following = attempt_of(2, [(5, 160), (0, 64), (6, 30)], 4)
    loop.at(10.0, engine.submit, following)
    loop.run()
    assert following.cached_tokens == 160 + 64


def test_an_aborted_request_is_told_of_no_more_and_frees_its_blocks(
    loop: EventLoop, device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    told = recorder_type(loop)
    engine = ExactEngine(loop, device, told, Histogram())
    attempt = attempt_of(1, [(5, 100)], 1000)
    engine.submit(attempt)
    loop.at(1.0, engine.abort, attempt)
    loop.run()
    assert 1 in told.first_s
    assert told.end_s == {}
    assert engine.stats().kv_blocks_used == 0


def test_a_halted_engine_is_silent(
    loop: EventLoop, device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    told = recorder_type(loop)
    engine = ExactEngine(loop, device, told, Histogram())
    engine.submit(attempt_of(1, [(5, 100)], 1000))
    loop.at(1.0, lambda _: engine.halt(), None)
    loop.run()
    assert told.end_s == {}


def test_a_slowed_device_takes_longer(
    loop: EventLoop, device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    told = recorder_type(loop)
    engine = ExactEngine(loop, device, told, Histogram())
    engine.slow_down(3.0)
    engine.submit(attempt_of(1, [(5, 100)], 5))
    loop.run()
    assert told.first_s[1] == pytest.approx(3 * device.step_s(100, 1, 100, 5000))


def test_a_full_queue_refuses(
    loop: EventLoop, device: DeviceModel, attempt_of: MakeAttempt, recorder_type: Any
) -> None:
    engine = ExactEngine(loop, device, recorder_type(loop), Histogram())
    for number in range(device.waiting_max):
        engine.submit(attempt_of(number, [(5, 100)], 5))
    with pytest.raises(RateLimited):
        engine.submit(attempt_of(9999, [(5, 100)], 5))
