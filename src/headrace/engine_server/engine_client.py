"""The engine as the HTTP process sees it: submit, read, abort, and what an operator asks of it.

When the engine dies (engine_life.py), requests that had produced something fail as retryable; those
that had not are sent again once it is back, but only once, so that a request that kills engines
stops there.
"""

import asyncio
from array import array
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
    Unavailable,
)
from headrace.engine_server import messages
from headrace.engine_server.cache_log import CacheLog
from headrace.engine_server.engine_child import engine_command
from headrace.engine_server.engine_life import EngineLife, stats_timeout_s
from headrace.engine_server.engine_status import (
    EngineState,
    EngineStatus,
    check_available,
    loading_retry_after_s,
)
from headrace.engine_server.messages import (
    AdapterCall,
    DiscardKv,
    EngineConfig,
    LoadAdapter,
    LoadedAdapter,
    Output,
    Stats,
    Submit,
    UnloadAdapter,
)
from headrace.engine_server.pending_calls import PendingCalls
from headrace.engine_server.request_stream import RequestStream
from headrace.engine_server.watchdog import Watchdog

resubmissions_max = 1
operator_calls_max = 64

rejection_types: dict[str, type[HeadraceError]] = {
    kind.code: kind
    for kind in (InvalidRequest, ContextLengthExceeded, NotFound, Conflict, RateLimited)
}

# Called exactly once for each submitted request that was not rejected, with its last usage.
OnEnd = Callable[[str, Output | None, str], None]


class EngineClient:
    """Carries requests to an engine process that is kept running, and outputs back."""

    def __init__(
        self,
        config: EngineConfig,
        clock: Clock,
        *,
        on_end: OnEnd,
        command: Sequence[str] = engine_command,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._clock = clock
        self._on_end = on_end
        self._streams: dict[str, RequestStream] = {}
        self._embeddings = PendingCalls[list[list[float]]]("embed", config.waiting_max)
        self._calls = PendingCalls[list[LoadedAdapter]]("call", operator_calls_max)
        self._life = EngineLife(
            config, clock, command, watchdog or Watchdog(config.step_timeout_s), self
        )
        self._vocabulary: messages.Vocabulary | None = None
        self.adapters: Mapping[str, LoadedAdapter] = {}  # by name
        self.cache_log = CacheLog()

    def start(self) -> None:
        """Start the engine process and keep it running until `close`."""
        self._life.start()

    async def close(self) -> None:
        """End the engine process and every request."""
        await self._life.close()

    @property
    def config(self) -> EngineConfig:
        """What the engine runs with, adapters that were loaded later included."""
        return self._life.config

    @property
    def status(self) -> EngineStatus:
        """Where the engine is now."""
        return self._life.status

    @property
    def ready(self) -> messages.Ready | None:
        """What the engine that runs, or ran last, said of itself."""
        return self._life.ready

    @property
    def loop_failures(self) -> Mapping[str, float]:
        """How often each loop that looks after the engine failed, by name."""
        return self._life.loops.totals()

    @property
    def restart_count(self) -> int:
        """How often the engine process was started again."""
        return self._life.restart_count

    @property
    def last_end(self) -> str:
        """How the engine process ended the last time, in words; empty: it never did."""
        return self._life.last_end

    @property
    def pid(self) -> int | None:
        """The engine process, if one runs."""
        return self._life.pid

    @property
    def adapter_names(self) -> Sequence[str]:
        """The LoRA adapters that are loaded, or that a starting engine loads."""
        return [adapter.name for adapter in (*self.config.adapters, *self.config.late_adapters)]

    @property
    def sleep_level(self) -> int:
        """How deep the engine sleeps; 0: it is awake."""
        return self._life.sleep_level

    @property
    def streams(self) -> Sequence[RequestStream]:
        """The requests that have not ended."""
        return tuple(self._streams.values())

    async def status_change(self) -> EngineStatus:
        """Wait for the next change of the status."""
        before = self.status
        while self.status is before:
            await self._life.change()
        return self.status

    async def wait_ready(self) -> messages.Ready:
        """Wait until requests may come; SetupError if the engine cannot start."""
        return await self._life.wait_ready()

    async def wait_idle(self) -> None:
        """Wait until no request is left."""
        while self._streams:
            await self._life.change()

    def teach(self, vocabulary: messages.Vocabulary) -> None:
        """Have every engine, from now on, find stop strings by itself."""
        self._vocabulary = vocabulary
        self._life.tell(vocabulary)

    def submit(self, submit: Submit) -> RequestStream:
        """Send a request, or keep it until a restarting engine is back.

        Raises Unavailable while the first engine loads or hangs and when none can start."""
        self.check_available()
        if submit.request_id in self._streams:
            raise Conflict(f"Request id {submit.request_id} is in use; send a new id.")
        stream = RequestStream(submit, self._clock.monotonic_s())
        if self.status.state is EngineState.READY:
            self._send(stream)
        elif len(self._streams) >= self.config.waiting_max:
            raise RateLimited(
                "The engine restarts and its queue is full; try again.",
                retry_after_s=loading_retry_after_s,
            )
        self._streams[submit.request_id] = stream
        return stream

    def check_available(self) -> None:
        """Raise Unavailable, with what there is to know, where `submit` would."""
        check_available(self.status)

    def abort(self, request_id: str, reason: HeadraceError | None = None) -> None:
        """End a request; its usage comes with the engine's answer.

        `reason` is for its reader, and None where the reader is gone."""
        stream = self._streams.get(request_id)
        if stream is None:
            return
        stream.abandoned = True
        stream.abort_reason = stream.abort_reason or reason
        if not self._life.tell(messages.Abort(request_id)):
            gone = Unavailable("The request was ended before the engine was back.")
            stream.fail(stream.abort_reason or gone)
            self._end(stream, "abort")

    def stop(self, request_id: str, output: Output) -> bool:
        """End a choice at the output that completed a stop string; False if it ended before.

        An engine that knows the vocabulary ended it there; what another still computes of it until
        it hears of this is not counted."""
        stream = self._streams.get(request_id)
        if stream is None or not stream.end_choice(output):
            return False
        self._life.tell(messages.Abort(request_id, output.index))
        if not stream.is_open:
            self._end(stream, "stop")
        return True

    async def embed(self, token_ids: list[list[int]]) -> list[list[float]]:
        """The texts' unit vectors; Unavailable also where the engine goes away meanwhile."""
        self.check_available()
        call_id, vectors = self._embeddings.open()
        if not self._life.tell(messages.Embed(call_id, token_ids)):
            vectors.cancel()
            raise Unavailable(
                "The engine restarts; try again.", retry_after_s=loading_retry_after_s
            )
        return await vectors

    def reset_cache(self, salt: str | None) -> None:
        """Forget what a salt's prompts left in the prefix cache; None: everyone's."""
        self._life.tell(messages.ResetCache(salt))

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
        if self.sleep_level >= level:
            return
        if level > 1:
            await self._life.end_process()
            return
        self._life.doze()
        call_id, done = self._calls.open()
        await self._ask(DiscardKv(call_id), done)

    async def wake(self) -> None:
        """Take requests again; after level 2 when the model is loaded."""
        await self._life.wake()

    async def stats(self, timeout_s: float = stats_timeout_s) -> Stats | None:
        """The engine's counters now; None if it does not say: none runs, or it hangs."""
        return await self._life.stats(timeout_s)

    # What the engine says.

    def on_message(self, message: messages.FromEngine) -> None:
        """Take in what the engine says of requests and calls (engine_life.py calls these)."""
        if isinstance(message, messages.Outputs):
            for output in message.outputs:
                self._on_output(output)
        elif isinstance(message, messages.CacheChanges):
            self.cache_log.add(message.changes)
        elif isinstance(message, messages.Embedded):
            vectors = [array("f", packed).tolist() for packed in message.vectors]
            self._embeddings.answer(message.call_id, vectors)
        elif isinstance(message, messages.Done):
            self._note_adapters(message.adapters)
            self._calls.answer(message.call_id, message.adapters)
        else:
            assert isinstance(message, messages.Rejected), "the life of the engine takes the others"
            self._on_rejected(message)

    def on_ready(self, ready: messages.Ready) -> None:
        """Note what a new engine has loaded."""
        self._note_adapters(ready.adapters)

    def on_awake(self) -> None:
        """Send what waited for the engine."""
        if self._vocabulary is not None:
            self._life.tell(self._vocabulary)
        for stream in self.streams:
            if not stream.is_sent:
                self._send(stream)

    def on_death(self) -> None:
        """Fail what an engine that is gone was asked, but for what another can begin anew."""
        self.cache_log.clear()
        gone = Unavailable("The engine restarts; try again.", retry_after_s=loading_retry_after_s)
        self._embeddings.fail_all(gone)
        self._calls.fail_all(gone)
        failed = self.status.state is EngineState.FAILED
        for stream in self.streams:
            stream.is_sent = False
            sent_enough = stream.sent_count > resubmissions_max
            if failed or stream.abandoned or stream.last is not None or sent_enough:
                self._fail(stream, "The engine restarts and this request was lost; try again.")

    def on_close(self) -> None:
        """Fail everything: this server ends."""
        gone = Unavailable("This server shuts down; try again.")
        self._embeddings.fail_all(gone)
        self._calls.fail_all(gone)
        for stream in self.streams:
            self._fail(stream, "This server shuts down; try again.")

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

    async def _ask(
        self, call: AdapterCall | DiscardKv, done: "asyncio.Future[list[LoadedAdapter]]"
    ) -> None:
        if not self._life.tell(call):
            done.cancel()
            raise Unavailable(
                "No engine runs that could be asked; try again when it is ready.",
                retry_after_s=loading_retry_after_s,
            )
        await done

    def _note_adapters(self, adapters: Sequence[LoadedAdapter]) -> None:
        """Remember what is loaded, for requests and for the engine's next start."""
        self.adapters = {adapter.name: adapter for adapter in adapters}
        places = {(adapter.name, adapter.path) for adapter in adapters}
        kept = tuple(a for a in self.config.adapters if (a.name, a.path) in places)
        places -= {(adapter.name, adapter.path) for adapter in kept}
        late = tuple(LoadAdapter("", name, path) for name, path in sorted(places))
        self._life.config = msgspec.structs.replace(self.config, adapters=kept, late_adapters=late)

    def _send(self, stream: RequestStream) -> None:
        stream.sent_count += 1
        stream.is_sent = True
        submit = stream.submit
        if stream.deadline_s is not None:
            left_s = max(0.0, stream.deadline_s - self._clock.monotonic_s())
            submit = msgspec.structs.replace(submit, timeout_s=left_s)
        self._life.tell(submit)

    def _fail(self, stream: RequestStream, message: str) -> None:
        stream.fail(Unavailable(message, retry_after_s=loading_retry_after_s))
        self._end(stream, "error")

    def _end(self, stream: RequestStream, reason: str) -> None:
        del self._streams[stream.submit.request_id]
        self._on_end(stream.submit.request_id, stream.last, reason)
        if not self._streams:
            self._life.notify()  # for `wait_idle`
