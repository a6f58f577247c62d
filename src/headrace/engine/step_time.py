"""How long a step takes, learnt from the steps that ran: what rows cost beyond the step itself.

    seconds = base + rows * row        by least squares, old steps forgotten

Reading the weights is the base, arithmetic is the rows' part. Where the steps so far had much the
same number of rows, the two cannot be told apart; then the base is taken for `ridge_rows` rows'
worth, which fades as other sizes are seen. It decides how many rows a step gets, not which tokens.
"""

ridge_rows = 16.0  # at which a CPU's arithmetic takes as long as reading the weights, roughly
ridge_weight = 4.0  # of that assumption, in squared rows
disturbed_share = 3.0  # of the expected time: more is not the step's own
forgetting = 0.98  # weight of the past at each step: about 50 steps count


class StepTime:
    """One runner's cost of a step."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0  # these are means
        self._seconds = 0.0
        self._variance = 0.0  # of rows, times the weight; as is the next one
        self._covariance = 0.0

    def record(self, rows: int, seconds: float) -> None:
        """Take in one step; of one that other programs disturbed only as much as is plausible."""
        if self.is_known:
            seconds = min(seconds, disturbed_share * (self.base_s + rows * self.row_s))
        self._weight = self._weight * forgetting + 1
        self._variance *= forgetting
        self._covariance *= forgetting
        off = rows - self._rows
        self._rows += off / self._weight
        self._seconds += (seconds - self._seconds) / self._weight
        self._variance += off * (rows - self._rows)
        self._covariance += off * (seconds - self._seconds)

    @property
    def is_known(self) -> bool:
        """Whether a step was measured."""
        return self._seconds > 0

    @property
    def row_s(self) -> float:
        """What one more row costs."""
        assumed_s = self._seconds / (self._rows + ridge_rows) if self._weight else 0.0
        return max(
            0.0,
            (self._covariance + ridge_weight * assumed_s) / (self._variance + ridge_weight),
        )

    @property
    def base_s(self) -> float:
        """What a step costs without its rows."""
        return max(0.0, self._seconds - self._rows * self.row_s)

    def rows_within(self, seconds: float, rows_max: int) -> int:
        """The most rows of a step that takes no longer; `rows_max` if nothing is known."""
        row_s = self.row_s
        if not row_s:
            return rows_max
        return max(0, min(rows_max, int((seconds - self.base_s) / row_s)))
