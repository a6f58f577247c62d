"""Keeps a stream's connection alive, and its headers early, until the first token comes.

The headers go out with the first comment: as soon as the engine has taken the request, or after a
short grace (`Timeouts.headers_grace_s`). An engine that refuses the request does so sooner, and is
then answered with its real status instead of an error inside a stream.
"""

import asyncio

from headrace.http.asgi import EventStream
from headrace.protocol.sse import heartbeat

interval_s = 10.0  # proxies cut idle connections after 60 s, some after 15


class Heartbeat:
    """Writes comments to one stream from `start` to `stop`; one timer, a task only to write."""

    __slots__ = ("_loop", "_stream", "_timer", "_writing")

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self, grace_s: float) -> None:
        """Begin after so long; nothing else may write to the stream until `stop`."""
        self._timer = self._loop.call_later(grace_s, self._beat)

    def hasten(self) -> None:
        """Send the first comment now if none went out and nothing stopped it; costs one call."""
        if self._timer is not None and not self._stream.started and self._writing is None:
            self._timer.cancel()
            self._beat()

    def stop(self) -> None:
        """End; may be called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _beat(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._stream.comment(heartbeat))
        self._timer = self._loop.call_later(interval_s, self._beat)
