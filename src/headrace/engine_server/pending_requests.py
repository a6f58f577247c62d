"""Requests on their way to the scheduler, which threads may still hold and anybody may abort."""

import threading
from collections.abc import Callable


class PendingRequests:
    """Who is still wanted; an abort comes before a request goes on, or finds that it has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_wanted: dict[str, bool] = {}

    def __len__(self) -> int:
        return len(self._is_wanted)

    def add(self, request_id: str) -> None:
        """Hold a request from now on."""
        with self._lock:
            self._is_wanted[request_id] = True

    def is_wanted(self, request_id: str) -> bool:
        """Whether a request that is held was not aborted."""
        with self._lock:
            return self._is_wanted[request_id]

    def abort(self, request_id: str) -> bool:
        """Give up a request; False if it is not held."""
        with self._lock:
            if request_id not in self._is_wanted:
                return False
            self._is_wanted[request_id] = False
            return True

    def release(self, request_id: str, go_on: Callable[[], None] = lambda: None) -> bool:
        """Hold a request no more and, if it is wanted, let it `go_on`; whether it was."""
        with self._lock:
            wanted = self._is_wanted.pop(request_id)
            if wanted:
                go_on()
        return wanted
