"""The access log is bounded, and takes nothing but its fields."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from headrace.gateway import access_log
from headrace.gateway.access_log import AccessLog, AccessRecord


async def test_lines_are_json_without_absent_fields() -> None:
    file = io.BytesIO()
    log = AccessLog(file)
    log.write(AccessRecord(time=1.0, request_id="req_1", status=404))
    log.flush()
    assert json.loads(file.getvalue()) == {"time": 1.0, "request_id": "req_1", "status": 404}


async def test_what_finds_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "buffered_lines_max", 2)
    file = io.BytesIO()
    log = AccessLog(file)
    for number in range(5):
        log.write(AccessRecord(time=1.0, request_id=str(number)))
    log.flush()
    assert (file.getvalue().count(b"\n"), log.dropped) == (2, 3)


@pytest.fixture
def full_disk() -> Iterator[BinaryIO]:
    with Path("/dev/full").open("wb", buffering=0) as file:
        yield file


async def test_a_full_disk_stops_no_request(full_disk: BinaryIO) -> None:
    log = AccessLog(full_disk)
    log.write(AccessRecord(time=1.0, request_id="req_1"))
    log.flush()
    assert log.dropped == 1


async def test_lines_reach_the_file_in_their_order_without_a_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access_log, "flush_interval_s", 0.0)
    loop, written = asyncio.get_running_loop(), asyncio.Event()

    class File(io.BytesIO):
        def flush(self) -> None:
            loop.call_soon_threadsafe(written.set)

    file = File()
    log = AccessLog(file)
    for number in range(20):
        log.write(AccessRecord(time=1.0, request_id=str(number)))
        await asyncio.sleep(0)
    while file.getvalue().count(b"\n") < 20:
        written.clear()
        await written.wait()
    ids = [json.loads(line)["request_id"] for line in file.getvalue().splitlines()]
    assert ids == [str(number) for number in range(20)]
