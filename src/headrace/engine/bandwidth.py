"""How fast steps read memory: the weights once, and the KV of every context, over their time.

Where a step only decodes, reading bounds it; so this beside the machine's own bandwidth says how
far from the wall the engine is. Of a mixture of experts all weights count, read or not.
"""

from headrace.engine.runner import RunnerInfo

forgetting = 0.95  # weight of the past at each step: about 20 steps count


class Bandwidth:
    """Bytes a second of the last steps without a prompt."""

    def __init__(self, info: RunnerInfo) -> None:
        self._weight_bytes = info.weight_bytes
        self._kv_token_bytes = info.kv_token_bytes
        self._bytes = 0.0
        self._seconds = 0.0

    def record(self, context_tokens: int, seconds: float) -> None:
        """Take in a step over so many tokens of context."""
        read = self._weight_bytes + context_tokens * self._kv_token_bytes
        self._bytes = self._bytes * forgetting + read
        self._seconds = self._seconds * forgetting + seconds

    @property
    def bytes_per_s(self) -> float:
        """The rate; 0 before a step, and of a runner that does not say what it reads."""
        return self._bytes / self._seconds if self._seconds else 0.0
