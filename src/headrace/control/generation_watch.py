"""Does a replica that says it is well still generate? Asked now and then, beside everything else.

Our own engine tells when it makes no step; others answer their health route while nothing comes
out. Of those that count tokens the counters are read: requests that run while nothing is counted
are no progress. The others are asked for a token (those that count are not, because what nobody is
billed for would be a difference to explain). Each question is a task of its own, so that a hung
engine delays no look; two failures in a row are a hung engine.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

from headrace.adapters.protocol import EngineLoad

interval_s = 60.0  # between questions to one replica
failures_max = 2


@dataclass(slots=True)
class Watched:
    """One process of a replica."""

    process: str
    due_s: float
    failures: int = 0
    counted: tuple[int | None, int | None] | None = None  # tokens, at the last question
    task: asyncio.Task[bool] | None = None


class GenerationWatch:
    """Questions under way and their outcome, by replica."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}

    def is_due(self, replica_id: str, process: str, now_s: float) -> bool:
        """Whether to ask; a new process has just shown that it generates."""
        known = self._watched.get(replica_id)
        if known is None or known.process != process:
            self._end(replica_id)
            self._watched[replica_id] = Watched(process, now_s + interval_s)
            return False
        return known.task is None and now_s >= known.due_s

    def ask(self, replica_id: str, question: Coroutine[None, None, bool]) -> None:
        """Put the question whether a token comes."""
        self._watched[replica_id].task = asyncio.ensure_future(question)

    def progresses(self, replica_id: str, load: EngineLoad) -> bool:
        """Whether counters moved since the last question, or nothing runs that would move them."""
        known = self._watched.get(replica_id)
        counted = (load.prompt_tokens_total, load.completion_tokens_total)
        if known is None:
            return True
        before, known.counted = known.counted, counted
        return not load.running_requests or counted != before

    def is_hung(self, replica_id: str, now_s: float) -> bool:
        """Whether the last questions all failed."""
        known = self._watched.get(replica_id)
        if known is None:
            return False
        if known.task is not None and known.task.done():
            failed = known.task.exception() is not None or not known.task.result()
            known.failures = known.failures + 1 if failed else 0
            known.due_s = now_s + interval_s
            known.task = None
        return known.failures >= failures_max

    def keep_only(self, replica_ids: set[str]) -> None:
        """Forget those that no longer serve."""
        for gone in self._watched.keys() - replica_ids:
            self._end(gone)

    def _end(self, replica_id: str) -> None:
        known = self._watched.pop(replica_id, None)
        if known is not None and known.task is not None:
            known.task.cancel()
