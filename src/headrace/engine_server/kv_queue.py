"""Requests whose KV is being fetched: in threads of their own, so that no step waits for them.

A fetch that fails is counted and its request goes on without; so does one that finds too many
before it. An abort ends a request at once, whatever its fetch does.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Full, Queue

from headrace.engine.kv_parcel import KvParcel
from headrace.engine_server.kv_wire import TransferFailed
from headrace.engine_server.messages import KvSource, Submit
from headrace.engine_server.pending_requests import PendingRequests

threads = 2  # fetches at once: memory bandwidth is shared, so more would only interleave
waiting_max = 64


GoOn = Callable[[Submit, KvParcel | None], None]


@dataclass(frozen=True, slots=True)
class FetchActions:
    """What happens with a request; called from the thread that fetched."""

    fetch: Callable[[KvSource], KvParcel]
    go_on: GoOn
    aborted: Callable[[str], None]


class FetchQueue:
    """Fetches KV in the order in which it was asked for."""

    def __init__(self, actions: FetchActions) -> None:
        self._actions = actions
        self._queue: Queue[Submit] = Queue(waiting_max)
        self._pending = PendingRequests()
        self._lock = threading.Lock()
        self.results: Counter[str] = Counter()  # of fetches that failed
        for number in range(threads):
            name = f"kv-fetch-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, message: Submit) -> None:
        """Take a request whose KV waits elsewhere."""
        self._pending.add(message.request_id)
        try:
            self._queue.put_nowait(message)
        except Full:
            self._end(message, None, "full")

    @property
    def count(self) -> int:
        """Requests that have not gone on."""
        return len(self._pending)

    def abort(self, request_id: str) -> bool:
        """Give up a request that has not gone on; False if there is none."""
        return self._pending.abort(request_id)

    def _work(self) -> None:
        while True:
            self.take(self._queue.get())

    def take(self, message: Submit) -> None:
        """Fetch one request's KV, and let it go on."""
        assert message.kv_source is not None, "only those with a source come here"
        parcel, result = None, ""
        if self._pending.is_wanted(message.request_id):
            try:
                parcel = self._actions.fetch(message.kv_source)
            except TransferFailed as failure:
                result = failure.result
        self._end(message, parcel, result)

    def _end(self, message: Submit, parcel: KvParcel | None, result: str) -> None:
        if result:
            with self._lock:
                self.results[result] += 1
        go_on = partial(self._actions.go_on, message, parcel)
        if not self._pending.release(message.request_id, go_on):
            self._actions.aborted(message.request_id)
