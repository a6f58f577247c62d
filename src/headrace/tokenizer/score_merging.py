"""Byte-pair merging as SentencePiece does it: of all neighbours, the best-scored token first.

Unlike a list of merges, a token's score alone decides, and of equals the leftmost; so tokens such
as runs of one character come out as the model was trained on them.
"""

import heapq
from collections.abc import Mapping

Candidate = tuple[float, int, int, str]  # minus the score, left and right index, the merged text


def merge_by_score(text: str, scores: Mapping[str, float]) -> list[str]:
    """Cut a text into tokens of `scores` and single characters. Cost: O(n log n)."""
    pieces: list[str] = list(text)
    before = list(range(-1, len(pieces) - 1))
    after = [*range(1, len(pieces)), -1]
    waiting: list[Candidate] = []

    def consider(left: int, right: int) -> None:
        if left < 0 or right < 0:
            return
        merged = pieces[left] + pieces[right]
        score = scores.get(merged)
        if score is not None:
            heapq.heappush(waiting, (-score, left, right, merged))

    for left in range(len(pieces) - 1):
        consider(left, left + 1)
    while waiting:
        _, left, right, merged = heapq.heappop(waiting)
        # A candidate is stale when one of its halves was merged meanwhile.
        if not pieces[left] or after[left] != right or pieces[left] + pieces[right] != merged:
            continue
        pieces[left], pieces[right] = merged, ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        consider(before[left], left)
        consider(left, after[left])
    return [piece for piece in pieces if piece]
