"""What an earlier process left in the journal: who was still running, and what is damaged."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.ledger.reservation import Checkpoint, Reservation, Reserve, Settle, TokenUsage
from headrace.ledger.segments import (
    SegmentContent,
    first_sequence_of,
    list_segments,
    quarantine,
    read_segment,
)


class Running(NamedTuple):
    """An admitted request without a settlement, and what it had used when last seen."""

    reservation: Reservation
    usage: TokenUsage
    sequence: int  # of its reservation's record


class Replay(NamedTuple):
    """The state that the segments describe."""

    running: dict[str, Running]  # by request id
    last_sequence: int
    problems: list[str]  # damage, for people; empty when all is well


def replay(directory: Path) -> Replay:
    """Read every segment, cut the torn tail off the last one, and quarantine damaged ones."""
    running: dict[str, Running] = {}
    problems: list[str] = []
    last = 0
    segments = list_segments(directory)
    for path in segments:
        content = read_segment(path)
        first = first_sequence_of(path)
        if last and first > last + 1:
            problems.append(f"journal records {last + 1} to {first - 1} before {path} are missing")
        last = max(last, first - 1)
        problems += report_damage(path, content)
        if path == segments[-1] and content.torn:
            os.truncate(path, content.end)
        for sequence, record in content.records:
            if sequence > last:
                apply(running, record, sequence)
                last = sequence
    return Replay(running, last, problems)


def report_damage(path: Path, content: SegmentContent) -> Iterator[str]:
    """Say what is wrong inside a segment, and keep a copy of it before anything is deleted."""
    if content.damages:
        places = ", ".join(f"{start}-{end}" for start, end in content.damages)
        copy = quarantine(path)
        yield (
            f"the journal segment {path} is damaged at bytes {places}; every record outside was "
            f"recovered, and {'a copy is kept at ' + str(copy) if copy else 'no copy is kept'}"
        )


def apply(
    running: dict[str, Running], record: Reserve | Checkpoint | Settle, sequence: int
) -> None:
    """Follow one record."""
    match record:
        case Reserve(reservation=reservation):
            # Written again when its first segment is deleted; what it used stays known.
            known = running.get(reservation.request_id)
            usage = known.usage if known else TokenUsage()
            running[reservation.request_id] = Running(reservation, usage, sequence)
        case Checkpoint(request_id=request_id, usage=usage):
            if request_id in running:
                running[request_id] = running[request_id]._replace(usage=usage)
        case Settle(settlement=settlement):
            running.pop(settlement.request_id, None)
