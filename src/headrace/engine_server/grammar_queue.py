"""Requests whose grammar is being compiled: in a thread of its own, so that nobody waits for it.

Neither steps nor other requests, aborts or questions stand behind a slow grammar. Behind it are
other grammars, of which `waiting_max` may wait, each for `wait_s_max`. How long one compiles is
bounded by its fuel (`grammars.py`).
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Full, Queue

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, InvalidRequest, RateLimited
from headrace.engine.kv_parcel import KvParcel
from headrace.engine.request import TokenConstraint
from headrace.engine_server.messages import Grammar, Submit
from headrace.engine_server.pending_requests import PendingRequests

log = logging.getLogger(__name__)

waiting_max = 64
wait_s_max = 10.0
retry_after_s = 1.0


@dataclass(frozen=True, slots=True)
class GrammarActions:
    """What happens with a request; called from the thread that compiles."""

    compile: Callable[[Grammar], TokenConstraint]
    submit: Callable[[Submit, TokenConstraint, KvParcel | None], None]
    reject: Callable[[str, HeadraceError], None]
    aborted: Callable[[str], None]


class GrammarQueue:
    """Compiles one grammar after the other, and submits their requests."""

    def __init__(self, actions: GrammarActions, clock: Clock) -> None:
        self._actions = actions
        self._clock = clock
        self._queue: Queue[tuple[Submit, KvParcel | None, float]] = Queue(waiting_max)
        self._pending = PendingRequests()
        threading.Thread(target=self._work, name="grammars", daemon=True).start()

    def put(self, message: Submit, parcel: KvParcel | None = None) -> None:
        """Take a request with a grammar, and the KV that came for it.

        RateLimited if too many wait."""
        self._pending.add(message.request_id)
        try:
            self._queue.put_nowait((message, parcel, self._clock.monotonic_s()))
        except Full:
            self._pending.release(message.request_id)
            raise _overload() from None

    @property
    def count(self) -> int:
        """Requests that are not submitted yet."""
        return len(self._pending)

    def abort(self, request_id: str) -> bool:
        """Give up a request that is not submitted yet; False if there is none."""
        return self._pending.abort(request_id)

    def _work(self) -> None:
        while True:
            message, parcel, since_s = self._queue.get()
            request_id = message.request_id
            try:
                go_on = self._compiled(message, parcel, since_s)
            except HeadraceError as error:
                go_on = partial(self._actions.reject, request_id, error)
            except BaseException:  # a panic in the compiler's Rust is no Exception
                log.exception("request %s: its grammar broke the compiler", request_id)
                go_on = partial(self._actions.reject, request_id, _unusable(message))
            if not self._pending.release(request_id, go_on):
                self._actions.aborted(request_id)

    def _compiled(
        self, message: Submit, parcel: KvParcel | None, since_s: float
    ) -> Callable[[], None]:
        """What submits a request; of one that left already, nothing is compiled."""
        assert message.grammar is not None, "only those with a grammar come here"
        if not self._pending.is_wanted(message.request_id):
            return lambda: None
        if self._clock.monotonic_s() - since_s > wait_s_max:
            raise _overload()
        constraint = self._actions.compile(message.grammar)
        return partial(self._submit, message, constraint, parcel)

    def _submit(
        self, message: Submit, constraint: TokenConstraint, parcel: KvParcel | None
    ) -> None:
        try:
            self._actions.submit(message, constraint, parcel)
        except HeadraceError as error:
            self._actions.reject(message.request_id, error)


def _unusable(message: Submit) -> InvalidRequest:
    """The refusal of a grammar for which nobody has better words; the next one has its turn."""
    assert message.grammar is not None, "only those with a grammar come here"
    param = message.grammar.param
    return InvalidRequest(f"{param} cannot be compiled; simplify it.", param=param)


def _overload() -> RateLimited:
    return RateLimited(
        "Too many grammars wait to be compiled; try again.", retry_after_s=retry_after_s
    )
