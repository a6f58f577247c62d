"""Which names are due and when: deduplicating, so that a thousand wake-ups are one look.

A name that is being worked on and woken again is due once more after it. Pure: time is an
argument, and the names are bounded by the deployments that exist.
"""

import heapq


class WorkQueue:
    """Names with the earliest time at which each is due."""

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # may hold stale pairs; _due_s is the truth

    def add(self, name: str, due_s: float) -> None:
        """Have `name` looked at by `due_s`; an earlier time that it has already stays."""
        if self._due_s.get(name, float("inf")) <= due_s:
            return
        self._due_s[name] = due_s
        heapq.heappush(self._heap, (due_s, name))

    def take(self, now_s: float) -> str | None:
        """A name that is due, which is then no longer in the queue, or None."""
        next_s = self.next_due_s()
        if next_s is None or next_s > now_s:
            return None
        _, name = heapq.heappop(self._heap)
        del self._due_s[name]
        return name

    def next_due_s(self) -> float | None:
        """When the next name is due, or None if there is none."""
        while self._heap and self._due_s.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._due_s)
