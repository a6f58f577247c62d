"""How long a step takes by its rows, learnt from the steps that ran.

It takes about the longer of two times: of reading the weights, and of its rows' arithmetic. So the
first rows more cost next to nothing and the later ones as much as any, which is no line. Mean times
are kept of sizes that double (1, 2, 3 to 4, 5 to 8, ... rows), and a row more costs what the larger
ones say:

    row_s(n)  = mean of (seconds of a larger size - of n's) / (its rows - n's), by what each can say
    step_s(n) = seconds of n's size, and from its rows to n so many row_s

What a size can say grows with its steps and its distance: `weight * (distance / rows)^2`. The
nearest are asked first, and no more once they have said `enough`: as times are convex, a nearer one
is nearer to the truth, and a farther one takes a row for too dear, never for too cheap. Where no
larger size is known the smaller ones are asked, and where no other is, a step is taken for
`ridge_rows` rows' worth beside its rows. It decides how many rows a step gets, not which tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass

ridge_rows = 16.0  # at which a CPU's arithmetic takes as long as reading the weights, roughly
enough = 1.0  # where steps vary by a tenth, a row's cost is then known to about a tenth
disturbed_share = 1.5  # of the expected time: more is not the step's own
forgetting = 0.99  # weight of the past at each step, of whatever size


@dataclass(slots=True)
class _Size:
    """Steps of about as many rows."""

    rows: float  # these are means
    seconds: float
    weight: float
    last_step: int


class StepTime:
    """One runner's cost of a step."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}  # by log2 of their most rows, ascending
        self._row_s: dict[int, float] = {}  # what was asked since the last step
        self._steps = 0

    def record(self, rows: int, seconds: float, weight: float = 1.0) -> None:
        """Take in one step; of one that other programs disturbed only as much as is plausible."""
        self._steps += 1
        self._row_s = {}
        key = (rows - 1).bit_length()
        if key not in self._sizes:
            self._sizes[key] = _Size(rows, seconds, weight, self._steps)
            self._sizes = dict(sorted(self._sizes.items()))
            return
        size = self._sizes[key]
        seconds = min(seconds, disturbed_share * size.seconds)
        size.weight = size.weight * forgetting ** (self._steps - size.last_step) + weight
        size.last_step = self._steps
        share = weight / size.weight
        size.rows += (rows - size.rows) * share
        size.seconds += (seconds - size.seconds) * share

    def row_s(self, rows: int) -> float:
        """What one more row costs where there are so many; 0 if nothing is known."""
        key = (rows - 1).bit_length()
        if key not in self._row_s:
            self._row_s[key] = self._ask(key)
        return self._row_s[key]

    def step_s(self, rows: int) -> float:
        """What a step of so many rows costs; 0 if nothing is known."""
        if not self._sizes:
            return 0.0
        own = self._sizes[self._nearest((rows - 1).bit_length())]
        along_s = own.seconds + (rows - own.rows) * self.row_s(rows)
        return max(along_s, own.seconds * min(1.0, rows / own.rows))

    def rows_within(self, seconds: float, rows_max: int) -> int:
        """The most rows of a step that takes no longer; `rows_max` if nothing is known."""
        near: _Size | None = None  # the largest that does
        row_s = 0.0
        for key, size in self._sizes.items():
            if size.seconds > seconds:
                row_s = self._ask(key) if near is None else _row_s(near, size)
                near = near or size
                break
            near, row_s = size, self._ask(key)
        if near is None or not row_s:
            return rows_max if near is None or near.seconds <= seconds else 0
        return max(0, min(rows_max, int(near.rows + (seconds - near.seconds) / row_s)))

    def _nearest(self, key: int) -> int:
        """The known size of so many rows, else the next smaller one, else the smallest."""
        if key in self._sizes:
            return key
        return max((known for known in self._sizes if known < key), default=min(self._sizes))

    def _ask(self, key: int) -> float:
        if not self._sizes:
            return 0.0
        own = self._nearest(key)
        larger = [size for other, size in self._sizes.items() if other > own]
        smaller = [size for other, size in self._sizes.items() if other < own]
        row_s = self._said(self._sizes[own], larger)
        if row_s is None:
            row_s = self._said(self._sizes[own], reversed(smaller))
        if row_s is None:
            row_s = self._sizes[own].seconds / (self._sizes[own].rows + ridge_rows)
        return row_s

    def _said(self, own: _Size, others: Iterable[_Size]) -> float | None:
        """A row's cost by those sizes, the nearest first; None if they say nothing."""
        row_s = said = 0.0
        for other in others:
            distance = (other.rows - own.rows) / max(other.rows, own.rows)
            age = self._steps - other.last_step
            says = other.weight * forgetting**age * distance * distance
            row_s += says * _row_s(own, other)
            said += says
            if said >= enough:
                break
        return row_s / said if said else None


def _row_s(first: _Size, second: _Size) -> float:
    """What a row costs between two sizes."""
    return max(0.0, (second.seconds - first.seconds) / (second.rows - first.rows))
