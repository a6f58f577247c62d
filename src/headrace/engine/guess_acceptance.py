"""How often guesses come true: a sequence's next one, by its own of late.

    a guess came true    chance += learning_rate * (1 - chance)
    one did not          chance -= learning_rate * chance

A sequence begins with what all had of late, so that not each has to learn anew what the answers of
this engine are like. Where a guess costs nothing but is not worth its row, it is kept in mind and
held against the token that comes (`foresee`): so it is known when guesses become worth their rows,
and nothing was computed for it. Where a guess does cost something, the chance creeps up instead
while nothing is guessed, so that it is tried again (`recover`).
"""

from headrace.engine.sequence import Sequence

learning_rate = 0.15
common_learning_rate = 0.02  # at least: at first it is the mean of all
chance_start = 0.6  # before anything is known
chance_max = 0.98
chance_min = 0.02
recovery = 0.02  # share of the way back to `chance_start` at each step without a guess


class GuessAcceptance:
    """Chances of an engine's sequences."""

    def __init__(self) -> None:
        self._common = chance_start
        self._outcomes = 0  # that it was learnt from
        self._own: dict[Sequence, float] = {}
        self._foreseen: dict[Sequence, tuple[int, int]] = {}  # place and token

    def chance(self, sequence: Sequence) -> float:
        """How likely its next guess comes true."""
        return self._own.get(sequence, self._common)

    def record(self, sequence: Sequence, accepted: int, *, is_refused: bool) -> None:
        """So many guesses came true, and then one did not or there were no more."""
        own = self._own.get(sequence, self._common)
        for outcome in [1.0] * accepted + [0.0] * is_refused:
            own += learning_rate * (outcome - own)
            self._outcomes += 1
            rate = max(common_learning_rate, 1 / (self._outcomes + 1))
            self._common += rate * (outcome - self._common)
        self._own[sequence] = min(max(own, chance_min), chance_max)

    def foresee(self, sequence: Sequence, token_id: int) -> None:
        """Keep a guess of the next token in mind that nothing is computed for."""
        self._foreseen[sequence] = (sequence.total, token_id)

    def settle(self, sequence: Sequence) -> None:
        """Learn from what was foreseen, if the token has come."""
        foreseen = self._foreseen.pop(sequence, None)
        if foreseen is not None and foreseen[0] < sequence.total:
            is_right = sequence.tokens[foreseen[0]] == foreseen[1]
            self.record(sequence, int(is_right), is_refused=not is_right)

    def recover(self, sequence: Sequence) -> None:
        """Nothing was guessed for it in this step."""
        own = self._own.get(sequence, self._common)
        self._own[sequence] = own + recovery * max(0.0, chance_start - own)

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._own.pop(sequence, None)
        self._foreseen.pop(sequence, None)
