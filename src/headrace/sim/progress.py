"""Progress that nobody watches, for tests that fetch a model."""


class SilentProgress:
    """Progress that nobody watches."""

    def start(self, total_bytes: int | None, label: str) -> None:
        """Ignore it."""

    def advance(self, byte_count: int) -> None:
        """Ignore it."""

    def finish(self) -> None:
        """Ignore it."""
