"""What whoever operates a server may do with it: pause, put to sleep, change its adapters.

While it is paused or asleep, requests get 503 with a Retry-After; none is held back.
"""

import asyncio

from headrace.base.errors import Conflict, InvalidRequest, RequestAborted, Unavailable
from headrace.engine_server.generating import Generating, paused_retry_after_s
from headrace.engine_server.nap import levels
from headrace.weights.lora.opening import check_adapter_name

ends = ("wait", "abort")  # what becomes of requests that run
aborted_words = "Whoever operates this server ended this request."
wait_s_default = 60.0
wait_s_max = 3600.0


class Operator:
    """Acts on one served model."""

    def __init__(self, generating: Generating) -> None:
        self._generating = generating
        self._engine = generating.service.engine
        self._adapters = asyncio.Lock()  # one change at a time
        self._sleeping = asyncio.Lock()

    async def pause(self, end: str, wait_s: float) -> None:
        """Refuse new requests, and return when those that run have ended.

        With `abort` they are ended. Conflict if some still run after the wait; it stays paused."""
        self._generating.is_paused = True
        await self._end_requests(end, wait_s)

    def resume(self) -> None:
        """Take requests again."""
        self._generating.is_paused = False

    def drain(self) -> None:
        """Be unready and refuse new requests for as long as this process lives."""
        self._generating.is_draining = True

    async def sleep(self, level: int, end: str, wait_s: float) -> None:
        """Give memory back: the KV's (1), the weights' too (2). Requests that run end first."""
        if level not in levels:
            raise InvalidRequest(f"There is no level {level} of sleep; use 1 or 2.", param="level")
        async with self._sleeping:
            was_paused, self._generating.is_paused = self._generating.is_paused, True
            try:
                await self._end_requests(end, wait_s)
                await self._engine.sleep(level)
            finally:
                self._generating.is_paused = was_paused

    async def wake(self) -> None:
        """Take the memory again and serve; returns when requests are taken."""
        async with self._sleeping:
            await self._engine.wake()

    def abort(self, request_id: str) -> None:
        """End a request; unknown ids are ignored."""
        self._engine.abort(request_id, RequestAborted(aborted_words))

    def reset_cache(self, salt: str | None) -> None:
        """Forget what a salt's prompts left in the prefix cache; None: everyone's."""
        self._engine.reset_cache(salt)

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> None:
        """Serve a LoRA adapter; the requests that run are not disturbed."""
        check_adapter_name(name)
        if not path:
            raise InvalidRequest("lora_path is the adapter's file or directory.", param="lora_path")
        async with self._adapters:
            await self._engine.load_adapter(name, path, replaces=replaces)

    async def unload_adapter(self, name: str) -> None:
        """Serve an adapter no more; its requests run to their end, then its memory is free."""
        async with self._adapters:
            await self._engine.unload_adapter(name)

    @property
    def is_paused(self) -> bool:
        """Whether new requests are refused until `resume`."""
        return self._generating.is_paused

    @property
    def sleep_level(self) -> int:
        """How deep the engine sleeps; 0: it is awake."""
        return self._engine.sleep_level

    def state(self) -> dict[str, object]:
        """All of it, for people and programs."""
        status, config = self._engine.status, self._engine.config
        requests = [stream.submit.adapter for stream in self._engine.streams]
        return {
            "state": status.state.value,
            "detail": status.detail,
            "paused": self._generating.is_paused,
            "draining": self._generating.is_draining,
            "sleep_level": self._engine.sleep_level,
            "running_requests": len(requests),
            "adapters_max": config.adapters_max,
            "adapter_rank_max": config.adapter_rank_max,
            "adapters": [
                {
                    "name": adapter.name,
                    "path": adapter.path,
                    "version": adapter.version,
                    "rank": adapter.rank,
                    "bytes": adapter.byte_count,
                    "running_requests": requests.count(adapter.name),
                }
                for adapter in self._engine.adapters.values()
            ],
        }

    async def _end_requests(self, end: str, wait_s: float) -> None:
        if end not in ends:
            raise InvalidRequest(
                f"Requests that run are not ended by {end!r}; use wait or abort.", param="mode"
            )
        if not 0 <= wait_s <= wait_s_max:
            raise InvalidRequest(f"timeout_s is 0 to {wait_s_max:.0f}.", param="timeout_s")
        if end == "abort":
            # Another replica may take them: this one refuses new requests with the same words.
            pausing = Unavailable(
                "The server was paused and ended this request; try again.",
                retry_after_s=paused_retry_after_s,
            )
            for stream in self._engine.streams:
                self._engine.abort(stream.submit.request_id, pausing)
        try:
            await asyncio.wait_for(self._engine.wait_idle(), wait_s)
        except TimeoutError:
            running = len(self._engine.streams)
            raise Conflict(
                f"{running} requests still run after {wait_s:g} s; wait for longer with timeout_s, "
                "or end them with mode=abort.",
                running_requests=running,
            ) from None
