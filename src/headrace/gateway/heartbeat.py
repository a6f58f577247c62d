"""Keeps a stream's connection alive, and its headers early, until the first token comes.

The first comment goes out after `headers_grace_s`: an engine that refuses the request does so
sooner, and is then answered with its real status instead of an error inside a stream.
"""

import asyncio

from headrace.http.asgi import EventStream
from headrace.protocol.sse import heartbeat

headers_grace_s = 1.0
interval_s = 10.0  # proxies cut idle connections after 60 s, some after 15


class Heartbeat:
    """Writes comments to one stream from `start` to `stop`; one timer, a task only to write."""

    __slots__ = ("_interval_s", "_loop", "_stream", "_timer", "_writing")

    def __init__(self, stream: EventStream, interval_s: float = interval_s) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self, grace_s: float = headers_grace_s) -> None:
        """Begin; nothing else may write to the stream until `stop`."""
        self._timer = self._loop.call_later(grace_s, self._beat)

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
        self._timer = self._loop.call_later(self._interval_s, self._beat)
