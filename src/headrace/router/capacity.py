"""How many requests an endpoint should have from this router at once; learnt from its own reports.

An engine that has requests waiting inside has too many: there they are first come, first served,
and no priority or fairness reaches them. One that has none waiting while all its places are taken
may have room for more.

    waiting > aim                     limit = in flight - (waiting - aim), at least 1
    waiting <= aim, in flight full    limit doubles, or grows by an eighth once it was cut

Work that can wait leaves some places free, so that who cannot finds one without waiting for it.
"""

limit_start = 32
limit_max = 1_000_000  # "no limit", for engines that report nothing
waiting_aim_min = 1  # so that a place that gets free is filled without a round trip
waiting_aim_share = 8  # an eighth of what runs
spare_share = 8  # an eighth of the places, and one at least, is not for what can wait


class Capacity:
    """The learnt limit of one endpoint."""

    __slots__ = ("_held_back", "_was_cut", "requests_max")

    def __init__(self) -> None:
        self.requests_max = limit_start
        self._was_cut = False
        self._held_back = False  # work that can wait would have filled it

    def has_spare(self, in_flight: int) -> bool:
        """Whether there is room for one more that leaves some places free."""
        spare = max(1, self.requests_max // spare_share) if self.requests_max > 1 else 0
        if in_flight < self.requests_max - spare:
            return True
        self._held_back = True
        return False

    def is_near(self, in_flight: int) -> bool:
        """Whether so many requests make the endpoint worth asking."""
        return 2 * in_flight >= self.requests_max

    def observe(self, *, running: int, waiting: int, in_flight: int) -> None:
        """Take a report: all that runs and waits there, and how many of it are this router's."""
        aim = max(waiting_aim_min, running // waiting_aim_share)
        if waiting > aim:
            self.requests_max = max(1, min(self.requests_max, in_flight - (waiting - aim)))
            self._was_cut = True
        elif in_flight >= self.requests_max or self._held_back:
            grown = self.requests_max // 8 + 1 if self._was_cut else self.requests_max
            self.requests_max = min(limit_max, self.requests_max + grown)
        self._held_back = False

    def forget(self) -> None:
        """The endpoint reports nothing: it is not limited here."""
        self.requests_max = limit_max
