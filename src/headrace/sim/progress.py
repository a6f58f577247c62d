"""Progress that nobody watches, for tests that fetch a model."""


class SilentProgress:
    """Progress that nobody watches."""

    def start(self, total_bytes: int | None, label: str) -> None:
        """Ignore it."""

    def advance(self, byte_count: int) -> None:
        """Ignore it."""

    def finish(self) -> None:
        """Ignore it."""


class RecordingProgress:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.steps: list[tuple[int | None, str]] = []
        self.done_bytes: list[int] = []
        self.finished = 0

    def start(self, total_bytes: int | None, label: str) -> None:
        """Remember the step."""
        self.steps.append((total_bytes, label))
        self.done_bytes.append(0)

    def advance(self, byte_count: int) -> None:
        """Count the step's bytes."""
        self.done_bytes[-1] += byte_count

    def finish(self) -> None:
        """Count the end."""
        self.finished += 1
