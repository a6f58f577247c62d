"""While the store is away the control plane's loops try on, and say so once a minute."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.adapters.registry import all_adapters
from headrace.base.absence import Absence
from headrace.base.errors import Unavailable
from headrace.base.loops import Loop
from headrace.control.applier import Applier
from headrace.control.decide import ControlTimes
from headrace.control.model_files import ModelFiles
from headrace.control.nodes.book import NodeBook
from headrace.control.nodes.node_loop import NodeLoop
from headrace.control.observer import Observer
from headrace.control.probe import EngineProbe
from headrace.control.reconciler import Reconciler
from headrace.control.watch_loop import look_again
from headrace.http.client import HttpClient
from headrace.sim.clock import ManualClock
from headrace.sim.launcher import FakeLauncher, FakeMachine
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.storage import Database

begin_s, end_s, stop_s = 10.0, 310.0, 320.0  # five minutes without the store


class Outage:
    """Time that passes by the loop's pauses alone; the store is away for some of it."""

    def __init__(self, clock: ManualClock, database: Database) -> None:
        self.clock = clock
        self.database = database
        self.tries = 0
        self._revision = database.store.revision

    def revision(self) -> int:
        if begin_s <= self.clock.monotonic_s() < end_s:
            self.tries += 1
            raise Unavailable("the store does not answer")
        return self._revision()

    async def pause(self, stop: asyncio.Event, seconds: float) -> None:
        await asyncio.sleep(0)
        self.clock.advance(seconds)
        if self.clock.monotonic_s() >= stop_s:
            stop.set()


@pytest.fixture
def outage(tmp_path: Path) -> Iterator[Outage]:
    clock = ManualClock()
    database = open_sqlite_copy(tmp_path / "headrace.db", clock)
    outage = Outage(clock, database)
    yield outage
    database.close()


def node_loop(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> Callable[[asyncio.Event], Loop]:
    monkeypatch.setattr(outage.database.store, "revision", outage.revision)
    loop = NodeLoop(
        store=outage.database.store,
        book=NodeBook(0.0),
        clock=outage.clock,
        leads=lambda: True,
        local=None,
        pause=outage.pause,
    )
    return lambda stop: partial(loop.run, stop)


def reconciler(outage: Outage, tmp_path: Path) -> Callable[[asyncio.Event], Loop]:
    store, clock = outage.database.store, outage.clock
    launcher = FakeLauncher(FakeMachine())
    adapters = {adapter.name: adapter for adapter in all_adapters}
    observer = Observer(
        store=store,
        launcher=launcher,
        probe=EngineProbe(HttpClient(), clock, bytes(32)),
        model_files=ModelFiles(tmp_path, clock),
        adapters=adapters,
        clock=clock,
    )
    applier = Applier(
        store=store,
        launcher=launcher,
        adapters=adapters,
        clock=clock,
        times=ControlTimes(),
        cpu_count=8,
        pepper=bytes(32),
    )
    loop = Reconciler(observer, applier, clock, ControlTimes(), outage.revision, pause=outage.pause)
    return lambda stop: partial(loop.run, stop)


def watch(outage: Outage) -> Callable[[asyncio.Event], Loop]:
    absence = Absence(
        logging.getLogger("headrace.control.watch_loop"),
        outage.clock,
        "alerts wait for the store",
        "alerts go on",
    )
    return lambda stop: partial(
        look_again,
        outage.revision,
        stop,
        lambda: True,
        interval_s=5.0,
        absence=absence,
        pause=outage.pause,
    )


@pytest.mark.parametrize(
    ("name", "waits", "goes_on", "tries_min"),
    [
        ("nodes", "nodes wait for the store", "nodes are looked at again", 1000),
        ("deployments", "deployments wait", "deployments are looked at again", 1000),
        ("watch", "alerts wait for the store", "alerts go on", 60),
    ],
)
async def test_five_minutes_without_the_store_are_six_lines(
    outage: Outage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    waits: str,
    goes_on: str,
    tries_min: int,
) -> None:
    made = {
        "nodes": lambda: node_loop(outage, monkeypatch),
        "deployments": lambda: reconciler(outage, tmp_path),
        "watch": lambda: watch(outage),
    }[name]()
    await made(asyncio.Event())()
    assert outage.tries >= tries_min
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told[0] == f"{waits}: the store does not answer"
    assert told[1:-1] == [
        f"{waits}, for {minute * 60} s by now: the store does not answer" for minute in range(1, 5)
    ]
    assert told[-1].startswith(f"{goes_on}, after 30")
