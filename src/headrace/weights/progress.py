"""What a long step tells whoever watches it; the command line draws bars, tests count."""

from typing import Protocol


class Progress(Protocol):
    """One step after another: `start`, any number of `advance`, `finish`."""

    def start(self, total_bytes: int | None, label: str) -> None:
        """A step begins; None if its size is not known."""
        ...

    def advance(self, byte_count: int) -> None:
        """This much more is done."""
        ...

    def finish(self) -> None:
        """The step ended, also when it failed."""
        ...
