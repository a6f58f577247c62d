"""Whether the books are right after the chaos: the ledger beside what the engine counted."""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Self

from headrace.ledger.rating import nothing_reserved, rate
from headrace.sim.booked import Booked
from headrace.sim.counting_engine import Oracle
from headrace.sim.gateway_site import price
from headrace.spec.settlements import Outcome, TokenUsage


def requests_wrong(
    oracle: Oracle, booked: Mapping[str, Booked], answered: Set[str]
) -> Iterator[str]:
    """Requests that are not in the books, or at other tokens than the engine counted.

    `answered`: request ids of the whole answers that clients got."""
    for request_id in oracle.tokens.keys() - answered - booked.keys():
        yield f"begun and not booked: {request_id}"
    for request_id in answered - booked.keys():
        yield f"answered and not booked: {request_id}"
    for request_id, row in booked.items():
        attempts = oracle.tokens.get(request_id, [(0, 0)])
        if row.tokens not in attempts:
            yield f"wrong: {request_id} {row.tokens} by {row.source}, {attempts}"


@dataclass(frozen=True, slots=True)
class KeyCharges:
    """What was paid under each Idempotency-Key and what was owed, by its prompt.

    What callers left is in neither."""

    paid: Mapping[str, int]  # in nano-dollars
    owed: Mapping[str, int]  # for one whole answer, in nano-dollars; of keys that had one

    @classmethod
    def of(cls, oracle: Oracle, booked: Mapping[str, Booked], max_tokens: int) -> Self:
        """Add them up; a whole answer has `max_tokens`."""
        whole = {
            (prompt_tokens, max_tokens): charge_nanousd(prompt_tokens, max_tokens)
            for attempts in oracle.tokens.values()
            for prompt_tokens, _ in attempts
        }
        paid: Counter[str] = Counter()
        owed: dict[str, int] = {}
        for request_id, prompt in oracle.keyed.items():
            row = booked.get(request_id)
            if row is None or row.outcome == Outcome.ABORTED.value:
                continue
            paid[prompt] += row.amount_nanousd
            if row.outcome == Outcome.FINISHED.value:
                owed[prompt] = whole[row.tokens]
        return cls(paid, owed)

    def wrong(self, answered: Set[str]) -> Iterator[str]:
        """Keys that were charged other than for one whole answer.

        `answered`: prompts of the keys that clients got an answer to."""
        for prompt, owed in self.owed.items():
            if self.paid[prompt] != owed:
                yield f"{prompt} was charged {self.paid[prompt]} and not {owed}"
        for prompt in self.paid.keys() - self.owed.keys():
            if self.paid[prompt]:
                yield f"{prompt} was charged {self.paid[prompt]} and never answered"
        for prompt in answered - self.owed.keys():
            yield f"{prompt} was answered and no answer of it is booked"


def charge_nanousd(prompt_tokens: int, completion_tokens: int) -> int:
    """What such an answer costs."""
    usage = TokenUsage(prompt_tokens, 0, completion_tokens)
    return rate(price, usage, nothing_reserved).amount_nanousd
