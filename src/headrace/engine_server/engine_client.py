"""The engine as the HTTP process sees it: submit, read, abort; an engine that dies is restarted.

    LOADING ──ready──▶ READY ──died──▶ RESTARTING ──ready──▶ READY
       │               │   ▲               │ ▲
       │          no step  steps again     │ └──killed── HUNG
       │               ▼   │               │
       │               HUNG                │
       └────────── cannot start ───────────┴──▶ FAILED

    READY ──sleep──▶ SLEEPING ──wake──▶ READY (level 1: without KV) or RESTARTING (2: no process)

An engine that makes no step although it has work is unready first, and ended if it stays so
(`watchdog.py`). When the engine dies, requests that had produced something fail as retryable; those
that had not are sent again once it is back, but only once, so that a request that kills engines
stops there.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import (
    Conflict,
    ContextLengthExceeded,
    HeadraceError,
    InvalidRequest,
    NotFound,
    RateLimited,
    SetupError,
    Unavailable,
)
from headrace.engine_server import messages
from headrace.engine_server.cache_log import CacheLog
from headrace.engine_server.embedding_calls import EmbeddingCalls
from headrace.engine_server.engine_calls import EngineCalls
from headrace.engine_server.engine_child import EngineChild, engine_command
from headrace.engine_server.engine_status import (
    EngineState,
    EngineStatus,
    check_available,
    loading_retry_after_s,
)
from headrace.engine_server.messages import (
    AdapterCall,
    EngineConfig,
    LoadAdapter,
    LoadedAdapter,
    Output,
    Stats,
    Submit,
    UnloadAdapter,
)
from headrace.engine_server.nap import Nap
from headrace.engine_server.request_stream import RequestStream
from headrace.engine_server.watchdog import Verdict, Watchdog

resubmissions_max = 1
start_attempts_max = 3  # consecutive ends of the process before it was ready
backoff_first_s = 0.25
backoff_max_s = 10.0
healthy_life_s = 60.0  # an engine that lived this long starts the backoff anew
stats_timeout_s = 5.0

rejection_types: dict[str, type[HeadraceError]] = {
    kind.code: kind
    for kind in (InvalidRequest, ContextLengthExceeded, NotFound, Conflict, RateLimited)
}


# Called exactly once for each submitted request that was not rejected, with its last usage.
OnEnd = Callable[[str, Output | None, str], None]


class EngineClient:
    """Keeps one engine process running, and carries requests to it and outputs back."""

    def __init__(
        self,
        config: EngineConfig,
        clock: Clock,
        *,
        on_end: OnEnd,
        command: Sequence[str] = engine_command,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._on_end = on_end
        self._command = command
        self._child: EngineChild | None = None
        self._streams: dict[str, RequestStream] = {}
        self._status = EngineStatus(EngineState.LOADING, 0.0, "starting the engine process")
        self._changed = asyncio.Event()
        self._stats_waiters: list[asyncio.Future[Stats | None]] = []
        self._watchdog = watchdog or Watchdog(config.step_timeout_s)
        self._supervisor: asyncio.Task[None] | None = None
        self._embeddings = EmbeddingCalls(config.waiting_max)
        self._calls = EngineCalls()
        self._nap = Nap()
        self.adapters: Mapping[str, LoadedAdapter] = {}  # by name
        self.cache_log = CacheLog()
        self.ready: messages.Ready | None = None  # of the engine that runs or ran last
        self.restart_count = 0

    def start(self) -> None:
        """Start the engine process and keep it running until `close`."""
        self._supervisor = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        """End the engine process and every request."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor

    @property
    def status(self) -> EngineStatus:
        """Where the engine is now."""
        return self._status

    @property
    def pid(self) -> int | None:
        """The engine process, if one runs."""
        return None if self._child is None else self._child.pid

    @property
    def streams(self) -> Sequence[RequestStream]:
        """The requests that have not ended."""
        return tuple(self._streams.values())

    async def status_change(self) -> EngineStatus:
        """Wait for the next change of the status."""
        await self._changed.wait()
        return self._status

    async def wait_ready(self) -> messages.Ready:
        """Wait until requests may come; SetupError if the engine cannot start."""
        while self._status.state is not EngineState.READY:
            if self._status.state is EngineState.FAILED:
                raise SetupError(self._status.detail)
            await self._changed.wait()
        assert self.ready is not None
        return self.ready

    def submit(self, submit: Submit) -> RequestStream:
        """Send a request, or keep it until a restarting engine is back.

        Raises Unavailable while the first engine loads or hangs and when none can start."""
        self.check_available()
        if submit.request_id in self._streams:
            raise Conflict(f"Request id {submit.request_id} is in use; send a new id.")
        stream = RequestStream(submit, self._clock.monotonic_s())
        if self._status.state is EngineState.READY:
            self._send(stream)
        elif len(self._streams) >= self._config.waiting_max:
            raise RateLimited(
                "The engine restarts and its queue is full; try again.",
                retry_after_s=loading_retry_after_s,
            )
        self._streams[submit.request_id] = stream
        return stream

    def check_available(self) -> None:
        """Raise Unavailable, with what there is to know, where `submit` would."""
        check_available(self._status)

    def abort(self, request_id: str) -> None:
        """End a request whose reader is gone; its usage comes with the engine's answer."""
        stream = self._streams.get(request_id)
        if stream is None:
            return
        stream.abandoned = True
        if self._child is not None and self._is_up:
            self._child.send(messages.Abort(request_id))
        else:
            self._end(stream, "abort")

    def stop(self, request_id: str, output: Output) -> bool:
        """End a choice at the output that completed a stop string; False if it ended before.

        What the engine still computes of it until it hears of this is not counted."""
        stream = self._streams.get(request_id)
        if stream is None or not stream.end_choice(output):
            return False
        if self._child is not None:
            self._child.send(messages.Abort(request_id, output.index))
        if not stream.is_open:
            self._end(stream, "stop")
        return True

    async def embed(self, token_ids: list[list[int]]) -> list[list[float]]:
        """The texts' unit vectors; Unavailable also where the engine goes away meanwhile."""
        self.check_available()
        if self._child is None or not self._is_up:
            raise Unavailable(
                "The engine restarts; try again.", retry_after_s=loading_retry_after_s
            )
        call, vectors = self._embeddings.open(token_ids)
        self._child.send(call)
        return await vectors

    def reset_cache(self, salt: str | None) -> None:
        """Forget what a salt's prompts left in the prefix cache; None: everyone's."""
        if self._child is not None and self._is_up:
            self._child.send(messages.ResetCache(salt))

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> None:
        """Load a LoRA adapter, now and after every restart; raises what is wrong with it."""
        call_id, done = self._calls.open()
        await self._ask(LoadAdapter(call_id, name, path, replaces), done)

    async def unload_adapter(self, name: str) -> None:
        """Serve an adapter no more; requests that it has run to their end."""
        call_id, done = self._calls.open()
        await self._ask(UnloadAdapter(call_id, name), done)

    async def sleep(self, level: int) -> None:
        """Give back the KV's memory (level 1), or all of it by ending the process (2).

        Requests that run must have ended; new ones are Unavailable from now on."""
        if self._nap.level >= level:
            return
        self.check_available()
        self._nap.begin(level)
        if level == 1:
            self._set_status(EngineState.SLEEPING, 1.0, "asleep: weights in memory, no KV")
            call_id, done = self._calls.open()
            await self._ask(messages.DiscardKv(call_id), done)
            return
        self._set_status(EngineState.SLEEPING, 0.0, "asleep: no weights, no KV")
        while self._child is not None:
            self._child.close()
            await self._changed.wait()

    async def wake(self) -> None:
        """Take requests again; after level 2 when the model is loaded."""
        if not self._nap.level:
            return
        self._nap.end()
        if self._child is not None:
            self._set_status(EngineState.READY, 1.0, "ready")
        await self.wait_ready()

    async def stats(self, timeout_s: float = stats_timeout_s) -> Stats | None:
        """The engine's counters now; None if it does not say: none runs, or it hangs."""
        if self._child is None or not self._is_up:
            return None
        waiter: asyncio.Future[Stats | None] = asyncio.get_running_loop().create_future()
        self._stats_waiters.append(waiter)
        self._child.send(messages.AskStats())
        try:
            return await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            if waiter in self._stats_waiters:
                self._stats_waiters.remove(waiter)
            return None

    # What the engine says.

    def _on_message(self, message: messages.FromEngine) -> None:
        if isinstance(message, messages.Outputs):
            for output in message.outputs:
                self._on_output(output)
        elif isinstance(message, messages.CacheChanges):
            self.cache_log.add(message.changes)
        elif isinstance(message, messages.Embedded):
            self._embeddings.answer(message)
        elif isinstance(message, messages.Done):
            self._note_adapters(message.adapters)
            self._calls.answer(message)
        elif isinstance(message, messages.Rejected):
            self._on_rejected(message)
        elif isinstance(message, messages.Stats):
            waiters, self._stats_waiters = self._stats_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(message)
        elif isinstance(message, messages.Loading):
            state = EngineState.LOADING if self.ready is None else EngineState.RESTARTING
            self._set_status(state, message.progress, message.detail)
        elif isinstance(message, messages.Ready):
            self._on_ready(message)
        else:
            self._set_status(EngineState.FAILED, 0.0, message.message)

    def _on_output(self, output: Output) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return  # stopped here, and the engine did not know yet
        stream.push(output)
        if not stream.is_open:
            self._end(stream, output.finish_reason or "stop")

    def _on_rejected(self, message: messages.Rejected) -> None:
        kind = rejection_types.get(message.code, InvalidRequest)
        fields: dict[str, object] = {**message.fields}
        error = kind(
            message.message, param=message.param, retry_after_s=message.retry_after_s, **fields
        )
        stream = self._streams.pop(message.request_id, None)
        if stream is None:
            if not self._calls.fail(message.request_id, error):
                self._embeddings.fail(message.request_id, error)
            return
        stream.fail(error)
        self._on_end(message.request_id, None, "rejected")

    def _on_ready(self, message: messages.Ready) -> None:
        self.ready = message
        self._note_adapters(message.adapters)
        if self._nap.level:  # it died asleep
            self._set_status(EngineState.SLEEPING, 1.0, "asleep: weights in memory, no KV")
            return
        self._set_status(EngineState.READY, 1.0, "ready")
        for stream in self.streams:
            self._send(stream)

    # The life of the engine process.

    async def _supervise(self) -> None:
        """Start the engine, again and again, until that is known to be in vain."""
        short_lives = 0
        unready_starts = 0
        try:
            while not self._failed:
                started_s = self._clock.monotonic_s()
                was_ready, exit_status = await self._run_engine()
                if self._nap.ends_process:
                    self._end_calls()
                    await self._nap.wait_end()
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
        finally:
            self._embeddings.fail_all(Unavailable("This server shuts down; try again."))
            for stream in self.streams:
                self._fail(stream, "This server shuts down; try again.")

    async def _run_engine(self) -> tuple[bool, int]:
        """Run one engine process to its end; whether it was ever ready, and its exit status."""
        child = await EngineChild.start(self._command, self._on_message)
        self._child = child
        watch = asyncio.create_task(self._watch(child))
        try:
            child.send(self._config)
            exit_status = await child.wait_closed()
            return self._is_up, exit_status
        finally:
            watch.cancel()
            child.close()
            await asyncio.shield(child.wait_closed())
            self._child = None
            self._notify()

    async def _watch(self, child: EngineChild) -> None:
        """Ask the engine for its counters, again and again, and act on what they say of it."""
        watchdog = self._watchdog
        while not self._is_up:
            await self._changed.wait()
        watchdog.start(self._clock.monotonic_s())
        while True:
            asked_s = self._clock.monotonic_s()
            stats = await self.stats(watchdog.interval_s)
            now_s = self._clock.monotonic_s()
            verdict = watchdog.judge(stats, now_s)
            silent_s = watchdog.silent_s(now_s)
            if verdict is Verdict.ALIVE and self._status.state is EngineState.HUNG:
                self._set_status(EngineState.READY, 1.0, "ready")
            elif verdict is Verdict.HUNG:
                self._set_status(EngineState.HUNG, 0.0, f"no step for {silent_s:.0f} s")
            elif verdict is Verdict.LOST:
                child.kill()
                return
            await asyncio.sleep(max(0.0, watchdog.interval_s - (now_s - asked_s)))

    def _on_death(self, exit_status: int, *, last: bool) -> None:
        how = f"signal {-exit_status}" if exit_status < 0 else f"exit status {exit_status}"
        if last and not self._failed:
            self._set_status(
                EngineState.FAILED,
                0.0,
                f"The engine process ended {start_attempts_max} times before it was ready, the "
                f"last time with {how}; its own message stands above.",
            )
        self._end_calls()
        for stream in self.streams:
            sent_enough = stream.sent_count > resubmissions_max
            if self._failed or stream.abandoned or stream.last is not None or sent_enough:
                self._fail(stream, "The engine restarts and this request was lost; try again.")
        if not self._failed:
            state = EngineState.LOADING if self.ready is None else EngineState.RESTARTING
            self._set_status(state, 0.0, f"the engine process ended with {how}; starting it again")

    def _end_calls(self) -> None:
        """End what a process that is gone was asked."""
        for waiter in self._stats_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._stats_waiters.clear()
        self.cache_log.clear()
        gone = Unavailable("The engine restarts; try again.", retry_after_s=loading_retry_after_s)
        self._embeddings.fail_all(gone)
        self._calls.fail_all(gone)

    async def _ask(
        self, call: AdapterCall | messages.DiscardKv, done: "asyncio.Future[list[LoadedAdapter]]"
    ) -> None:
        if self._child is None or not self._is_up:
            done.cancel()
            raise Unavailable(
                "No engine runs that could be asked; try again when it is ready.",
                retry_after_s=loading_retry_after_s,
            )
        self._child.send(call)
        await done

    def _note_adapters(self, adapters: Sequence[LoadedAdapter]) -> None:
        """Remember what is loaded, for requests and for the engine's next start."""
        self.adapters = {adapter.name: adapter for adapter in adapters}
        places = {(adapter.name, adapter.path) for adapter in adapters}
        kept = tuple(a for a in self._config.adapters if (a.name, a.path) in places)
        places -= {(adapter.name, adapter.path) for adapter in kept}
        late = tuple(LoadAdapter("", name, path) for name, path in sorted(places))
        self._config = msgspec.structs.replace(self._config, adapters=kept, late_adapters=late)

    @property
    def _is_up(self) -> bool:
        """Whether an engine is there that was ready once."""
        state = self._status.state
        if state is EngineState.SLEEPING:
            return not self._nap.ends_process
        return state in (EngineState.READY, EngineState.HUNG)

    @property
    def _failed(self) -> bool:
        return self._status.state is EngineState.FAILED

    def _send(self, stream: RequestStream) -> None:
        assert self._child is not None
        stream.sent_count += 1
        submit = stream.submit
        if stream.deadline_s is not None:
            left_s = max(0.0, stream.deadline_s - self._clock.monotonic_s())
            submit = msgspec.structs.replace(submit, timeout_s=left_s)
        self._child.send(submit)

    def _fail(self, stream: RequestStream, message: str) -> None:
        stream.fail(Unavailable(message, retry_after_s=loading_retry_after_s))
        self._end(stream, "error")

    def _end(self, stream: RequestStream, reason: str) -> None:
        del self._streams[stream.submit.request_id]
        self._on_end(stream.submit.request_id, stream.last, reason)

    def _set_status(self, state: EngineState, progress: float, detail: str) -> None:
        self._status = EngineStatus(state, progress, detail)
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
