"""How many requests an endpoint should have from this router at once; learnt from its own reports.

An engine that has requests waiting inside has too many: there they are first come, first served,
and no priority or fairness reaches them. One that has none waiting while all its places are taken
may have room for more.

    waiting > aim                     limit = in flight - (waiting - aim), at least 1
    waiting <= aim, in flight full    limit doubles, or grows by an eighth once it was cut
"""

limit_start = 32
limit_max = 1_000_000  # "no limit", for engines that report nothing
waiting_aim_min = 1  # so that a place that gets free is filled without a round trip
waiting_aim_share = 8  # an eighth of what runs


class Capacity:
    """The learnt limit of one endpoint."""

    __slots__ = ("_was_cut", "requests_max")

    def __init__(self) -> None:
        self.requests_max = limit_start
        self._was_cut = False

    def is_near(self, in_flight: int) -> bool:
        """Whether so many requests make the endpoint worth asking."""
        return 2 * in_flight >= self.requests_max

    def observe(self, *, running: int, waiting: int, in_flight: int) -> None:
        """Take a report: all that runs and waits there, and how many of it are this router's."""
        aim = max(waiting_aim_min, running // waiting_aim_share)
        if waiting > aim:
            self.requests_max = max(1, min(self.requests_max, in_flight - (waiting - aim)))
            self._was_cut = True
        elif in_flight >= self.requests_max:
            grown = self.requests_max // 8 + 1 if self._was_cut else self.requests_max
            self.requests_max = min(limit_max, self.requests_max + grown)

    def forget(self) -> None:
        """The endpoint reports nothing: it is not limited here."""
        self.requests_max = limit_max
