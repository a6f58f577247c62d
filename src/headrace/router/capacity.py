"""How many requests an endpoint should have from this router at once; learnt from its own reports.

An engine that has requests waiting inside has too many: there they are first come, first served,
and no priority or fairness reaches them. One that has none waiting while all its places are taken
may have room for more.

    waiting > aim, and it stays       limit = in flight - (what stays - aim), at least 1
    waiting <= aim, in flight full    limit doubles, or grows by an eighth once it was cut

Prompts that come in a burst wait in any engine and are gone in a moment; a limit that such a moment
sets would keep later requests from the least busy replica. A queue stays if this router's prompts
in it will take `standing_s` by their learnt speed, or if it was there in every report of as long a
time, as CoDel tells a standing queue from a good one (Nichols and Jacobson 2012).

Work that can wait leaves some places free, so that who cannot finds one without waiting for it.
"""

from dataclasses import dataclass

limit_start = 64
limit_max = 1_000_000  # "no limit", for engines that report nothing
waiting_aim_min = 1  # so that a place that gets free is filled without a round trip
waiting_aim_share = 8  # an eighth of what runs
spare_share = 8  # an eighth of the places, and one at least, is not for what can wait
standing_s = 0.4  # less than lies between two reports while nobody waits in the gateway
report_gap_s_max = 1.0  # after a longer one nothing is known of the time between


@dataclass(slots=True)
class Backlog:
    """The least that waited beyond the aim in the reports of a stretch of time."""

    since_s: float
    until_s: float
    requests: int


class Capacity:
    """The learnt limit of one endpoint."""

    __slots__ = ("_backlog", "_held_back", "_was_cut", "requests_max")

    def __init__(self) -> None:
        self.requests_max = limit_start
        self._was_cut = False
        self._held_back = False  # work that can wait would have filled it
        self._backlog: Backlog | None = None  # None: no more than the aim waited lately

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

    def observe(
        self, *, running: int, waiting: int, in_flight: int, queue_s: float, now_s: float
    ) -> None:
        """Take a report: all that runs and waits there, and how many of it are this router's.

        `queue_s` is how long the prompts that this router has queued there will take."""
        too_many = waiting - max(waiting_aim_min, running // waiting_aim_share)
        if too_many > 0:
            staying = self._staying(too_many, now_s)
            if queue_s >= standing_s:
                staying = too_many
            if staying:
                self.requests_max = max(1, min(self.requests_max, in_flight - staying))
                self._was_cut = True
        else:
            self._backlog = None
            if in_flight >= self.requests_max or self._held_back:
                grown = self.requests_max // 8 + 1 if self._was_cut else self.requests_max
                self.requests_max = min(limit_max, self.requests_max + grown)
        self._held_back = False

    def forget(self) -> None:
        """The endpoint reports nothing: it is not limited here."""
        self.requests_max = limit_max
        self._backlog = None

    def _staying(self, too_many: int, now_s: float) -> int:
        """Of what waits beyond the aim, what did for `standing_s`; 0 until so long is over.

        Then the next stretch of time begins, because what was cut takes a while to leave."""
        backlog = self._backlog
        if backlog is None or now_s - backlog.until_s > report_gap_s_max:
            self._backlog = Backlog(now_s, now_s, too_many)
            return 0
        backlog.until_s = now_s
        backlog.requests = min(backlog.requests, too_many)
        if now_s - backlog.since_s < standing_s:
            return 0
        self._backlog = Backlog(now_s, now_s, too_many)
        return backlog.requests
