"""The life of the engine process: started, watched, started again, put to sleep and woken.

    LOADING ──ready──▶ READY ──died──▶ RESTARTING ──ready──▶ READY
       │               │   ▲               │ ▲
       │          no step  steps again     │ └──killed── HUNG
       │               ▼   │               │
       │               HUNG                │
       └────────── cannot start ───────────┴──▶ FAILED

    READY ──sleep──▶ SLEEPING ──wake──▶ READY (level 1: without KV) or RESTARTING (2: no process)

An engine that makes no step although it has work is unready first, and ended if it stays so
(`watchdog.py`). What it says and what it was asked is `EngineClient`'s.
"""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from headrace.base.clock import Clock
from headrace.base.errors import SetupError, Unavailable
from headrace.base.loops import LoopKeeper
from headrace.engine_server import messages
from headrace.engine_server.engine_child import EngineChild
from headrace.engine_server.engine_status import (
    EngineState,
    EngineStatus,
    check_available,
    loading_retry_after_s,
)
from headrace.engine_server.messages import EngineConfig, Stats
from headrace.engine_server.nap import Nap
from headrace.engine_server.watchdog import Verdict, Watchdog
from headrace.engine_server.weights_check import forget_packed, lost_page_text

start_attempts_max = 3  # consecutive ends of the process before it was ready
backoff_first_s = 0.25
backoff_max_s = 10.0
healthy_life_s = 60.0  # an engine that lived this long starts the backoff anew
stats_timeout_s = 5.0
watchdog_loop, supervisor_loop = "watchdog", "engine_supervisor"


class Listener(Protocol):
    """Who is told what the engine says, and that it is there or gone."""

    def on_message(self, message: messages.FromEngine) -> None:
        """It said something that is not of its life."""
        ...

    def on_ready(self, ready: messages.Ready) -> None:
        """It takes requests; the status is not yet changed."""
        ...

    def on_awake(self) -> None:
        """It takes requests, and the status says so."""
        ...

    def on_death(self) -> None:
        """It is gone, and answers nothing that it was asked; the status says what follows."""
        ...

    def on_close(self) -> None:
        """No other will be started."""
        ...


class EngineLife:
    """Keeps one engine process running until `close`."""

    def __init__(
        self,
        config: EngineConfig,
        clock: Clock,
        command: Sequence[str],
        watchdog: Watchdog,
        listener: Listener,
    ) -> None:
        self.config = config  # of the next start
        self._clock = clock
        self._command = command
        self._watchdog = watchdog
        self._listener = listener
        self._child: EngineChild | None = None
        self._stats_waiters: list[asyncio.Future[Stats | None]] = []
        self._supervisor: asyncio.Task[None] | None = None
        self._nap = Nap()
        self.loops = LoopKeeper(clock)
        self.loops.know(watchdog_loop)
        self._changed = asyncio.Event()
        self.status = EngineStatus(EngineState.LOADING, 0.0, "starting the engine process")
        self.ready: messages.Ready | None = None  # of the engine that runs or ran last
        self.restart_count = 0
        self.last_end = ""  # in words

    def start(self) -> None:
        """Start the engine process and keep it running until `close`."""
        self._supervisor = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        """End the engine process."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor

    @property
    def pid(self) -> int | None:
        """The engine process, if one runs."""
        return None if self._child is None else self._child.pid

    @property
    def sleep_level(self) -> int:
        """How deep it sleeps; 0: it is awake."""
        return self._nap.level

    @property
    def is_up(self) -> bool:
        """Whether an engine is there that was ready once."""
        state = self.status.state
        if state is EngineState.SLEEPING:
            return not self._nap.ends_process
        return state in (EngineState.READY, EngineState.HUNG)

    async def change(self) -> None:
        """Wait for the next change of the status, or `notify`."""
        await self._changed.wait()

    def notify(self) -> None:
        """Wake who waits for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_ready(self) -> messages.Ready:
        """Wait until requests may come; SetupError if the engine cannot start."""
        while self.status.state is not EngineState.READY:
            if self.status.state is EngineState.FAILED:
                raise SetupError(self.status.detail)
            await self._changed.wait()
        assert self.ready is not None
        return self.ready

    def tell(self, message: messages.ToEngine) -> bool:
        """Send a message to the engine; False if none is up."""
        if self._child is None or not self.is_up:
            return False
        self._child.send(message)
        return True

    async def stats(self, timeout_s: float = stats_timeout_s) -> Stats | None:
        """The engine's counters now; None if it does not say: none runs, or it hangs."""
        if not self.tell(messages.AskStats()):
            return None
        waiter: asyncio.Future[Stats | None] = asyncio.get_running_loop().create_future()
        self._stats_waiters.append(waiter)
        try:
            return await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            if waiter in self._stats_waiters:
                self._stats_waiters.remove(waiter)
            return None

    def doze(self) -> None:
        """Sleep at level 1: whoever calls has the engine give its KV back.

        Unavailable unless it is ready."""
        self._check_ready()
        self._nap.begin(1)
        self._set_status(EngineState.SLEEPING, 1.0, "asleep: weights in memory, no KV")

    async def end_process(self) -> None:
        """Sleep at level 2; returns when the process has ended. Unavailable unless it is ready."""
        if not self._nap.level:
            self._check_ready()
        self._nap.begin(2)
        self._set_status(EngineState.SLEEPING, 0.0, "asleep: no weights, no KV")
        while self._child is not None:
            self._child.close()
            await self._changed.wait()

    async def wake(self) -> None:
        """Take requests again; after level 2 when the model is loaded."""
        if not self._nap.level:
            return
        was_up = self.is_up
        self._nap.end()
        if was_up:
            self._set_status(EngineState.READY, 1.0, "ready")
            self._listener.on_awake()
        else:
            self._set_status(EngineState.RESTARTING, 0.0, "waking up")
        await self.wait_ready()

    def _check_ready(self) -> None:
        check_available(self.status)
        if self.status.state is not EngineState.READY:
            raise Unavailable(
                "The engine restarts; try again.", retry_after_s=loading_retry_after_s
            )

    def _on_message(self, message: messages.FromEngine) -> None:
        if isinstance(message, messages.Stats):
            self._answer_stats(message)
        elif isinstance(message, messages.Loading):
            state = EngineState.LOADING if self.ready is None else EngineState.RESTARTING
            self._set_status(state, message.progress, message.detail)
        elif isinstance(message, messages.Ready):
            self._on_ready(message)
        elif isinstance(message, messages.Failed):
            self._set_status(EngineState.FAILED, 0.0, message.message)
        else:
            self._listener.on_message(message)

    def _on_ready(self, message: messages.Ready) -> None:
        self.ready = message
        self._listener.on_ready(message)
        if self._nap.level:  # it died asleep
            self._set_status(EngineState.SLEEPING, 1.0, "asleep: weights in memory, no KV")
            return
        self._set_status(EngineState.READY, 1.0, "ready")
        self._listener.on_awake()

    def _answer_stats(self, stats: Stats | None) -> None:
        waiters, self._stats_waiters = self._stats_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(stats)

    async def _supervise(self) -> None:
        """Start the engine, again and again, until that is known to be in vain."""
        short_lives = 0
        unready_starts = 0
        try:
            while not self._failed:
                await self._nap.wait_process()
                started_s = self._clock.monotonic_s()
                was_ready, exit_status = await self._run_engine()
                if self._nap.ends_process:
                    self._answer_stats(None)
                    self._listener.on_death()
                    continue
                long_life = self._clock.monotonic_s() - started_s >= healthy_life_s
                short_lives = 0 if long_life else short_lives + 1
                unready_starts = 0 if was_ready else unready_starts + 1
                self._on_death(exit_status, last=unready_starts >= start_attempts_max)
                if not self._failed:
                    self.restart_count += 1
                    delay_s = backoff_first_s * 2 ** min(short_lives, 16)
                    await asyncio.sleep(min(delay_s, backoff_max_s))
        except OSError as error:
            self._set_status(EngineState.FAILED, 0.0, f"the engine process cannot start: {error}")
        except Exception as error:  # noqa: BLE001 -- noted, with its traceback
            # Whoever runs this server ends it, and starts another.
            self.loops.note(supervisor_loop, error)
            words = f"what keeps the engine running failed ({type(error).__name__}); see the log"
            self._set_status(EngineState.FAILED, 0.0, words)
        finally:
            self._listener.on_close()

    async def _run_engine(self) -> tuple[bool, int]:
        """Run one engine process to its end; whether it was ever ready, and its exit status."""
        child = await EngineChild.start(self._command, self._on_message)
        self._child = child
        watch = self.loops.start(watchdog_loop, partial(self._watch, child))
        try:
            child.send(self.config)
            exit_status = await child.wait_closed()
            return self.is_up, exit_status
        finally:
            watch.cancel()
            child.close()
            await asyncio.shield(child.wait_closed())
            self._child = None
            self.notify()

    async def _watch(self, child: EngineChild) -> None:
        """Ask the engine for its counters, again and again, and act on what they say of it."""
        watchdog = self._watchdog
        while not self.is_up:
            await self._changed.wait()
        watchdog.start(self._clock.monotonic_s())
        while True:
            asked_s = self._clock.monotonic_s()
            stats = await self.stats(watchdog.interval_s)
            now_s = self._clock.monotonic_s()
            verdict = watchdog.judge(stats, now_s)
            silent_s = watchdog.silent_s(now_s)
            if verdict is Verdict.ALIVE and self.status.state is EngineState.HUNG:
                self._set_status(EngineState.READY, 1.0, "ready")
            elif verdict is Verdict.HUNG:
                self._set_status(EngineState.HUNG, 0.0, f"no step for {silent_s:.0f} s")
            elif verdict is Verdict.LOST:
                child.kill()
                return
            await asyncio.sleep(max(0.0, watchdog.interval_s - (now_s - asked_s)))

    def _on_death(self, exit_status: int, *, last: bool) -> None:
        how = f"signal {-exit_status}" if exit_status < 0 else f"exit status {exit_status}"
        if exit_status == -signal.SIGBUS and forget_packed(self.config):
            how += f" ({lost_page_text})"
        if last and not self._failed:
            self._set_status(
                EngineState.FAILED,
                0.0,
                f"The engine process ended {start_attempts_max} times before it was ready, the "
                f"last time with {how}; its own message stands above.",
            )
        self._answer_stats(None)
        self._listener.on_death()
        if not self._failed:
            state = EngineState.LOADING if self.ready is None else EngineState.RESTARTING
            self.last_end = f"the engine process ended with {how}; starting it again"
            self._set_status(state, 0.0, self.last_end)

    @property
    def _failed(self) -> bool:
        return self.status.state is EngineState.FAILED

    def _set_status(self, state: EngineState, progress: float, detail: str) -> None:
        self.status = EngineStatus(state, progress, detail)
        self.notify()
