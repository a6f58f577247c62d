"""Priority classes: who goes first when every replica of a model is full."""

from enum import IntEnum


class Priority(IntEnum):
    """A lower number goes first; classes never share a queue lane."""

    INTERACTIVE = 0  # somebody is watching
    STANDARD = 1
    BATCH = 2  # fills what the others leave

    @property
    def word(self) -> str:
        """As requests, settings and metrics say it."""
        return self.name.lower()


priorities_by_word = {priority.word: priority for priority in Priority}
