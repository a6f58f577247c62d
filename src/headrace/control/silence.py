"""Are so many silent at once that the silence is on this side? Then nobody is ended for it.

A control plane whose network is cut sees everybody dead, and must not restart a fleet that serves.
Processes that have ended, by the launcher's word, are started again all the same.
"""

share_max = 0.3  # of the serving replicas
count_min = 3  # fewer may well fail together


class SilenceWatch:
    """Who answered the last probe, of the replicas that serve."""

    def __init__(self) -> None:
        self._silent: dict[str, bool] = {}

    def note(self, replica_id: str, *, is_silent: bool) -> None:
        """One probe of one replica."""
        self._silent[replica_id] = is_silent

    def keep_only(self, replica_ids: set[str]) -> None:
        """Forget those that no longer serve."""
        for gone in self._silent.keys() - replica_ids:
            self._silent.pop(gone, None)

    @property
    def is_suspicious(self) -> bool:
        """Whether too many are silent for it to be their own fault."""
        silent = sum(self._silent.values())
        return silent >= count_min and silent > share_max * len(self._silent)
