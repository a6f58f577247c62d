"""Requests whose KV is being fetched: in threads of their own, so that no step waits for them.

A fetch that fails is counted and its request goes on without; so does one that finds too many
before it. An abort ends a request at once, whatever its fetch does.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from queue import Full, Queue

from headrace.engine.kv_parcel import KvParcel
from headrace.engine_server.kv_wire import TransferFailed
from headrace.engine_server.messages import KvSource, Submit

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
        self._lock = threading.Lock()
        self._is_wanted: dict[str, bool] = {}  # requests that have not gone on
        self.results: Counter[str] = Counter()  # of fetches that failed
        for number in range(threads):
            name = f"kv-fetch-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, message: Submit) -> None:
        """Take a request whose KV waits elsewhere."""
        with self._lock:
            self._is_wanted[message.request_id] = True
        try:
            self._queue.put_nowait(message)
        except Full:
            self._end(message, None, "full")

    @property
    def count(self) -> int:
        """Requests that have not gone on."""
        return len(self._is_wanted)

    def abort(self, request_id: str) -> bool:
        """Give up a request that has not gone on; False if there is none."""
        with self._lock:
            if request_id not in self._is_wanted:
                return False
            self._is_wanted[request_id] = False
            return True

    def _work(self) -> None:
        while True:
            self.take(self._queue.get())

    def take(self, message: Submit) -> None:
        """Fetch one request's KV, and let it go on."""
        assert message.kv_source is not None, "only those with a source come here"
        with self._lock:
            is_wanted = self._is_wanted[message.request_id]
        parcel, result = None, ""
        if is_wanted:
            try:
                parcel = self._actions.fetch(message.kv_source)
            except TransferFailed as failure:
                result = failure.result
        self._end(message, parcel, result)

    def _end(self, message: Submit, parcel: KvParcel | None, result: str) -> None:
        with self._lock:  # an abort comes before the submission, or finds it done
            if result:
                self.results[result] += 1
            is_wanted = self._is_wanted.pop(message.request_id)
            if is_wanted:
                self._actions.go_on(message, parcel)
        if not is_wanted:
            self._actions.aborted(message.request_id)
