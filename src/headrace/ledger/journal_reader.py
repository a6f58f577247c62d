"""Reads a journal's settlements from the oldest on, a batch at a time, while it is written."""

from enum import Enum
from pathlib import Path
from typing import NamedTuple

from headrace.ledger.frames import header, payload_bytes_max, scan
from headrace.ledger.segments import decode_settlement, first_sequence_of, list_segments
from headrace.spec.settlements import Settlement

frame_bytes_max = header.size + payload_bytes_max
chunk_bytes = 4 * frame_bytes_max  # read at once; more than one frame, so that damage is passed


class NumberedSettlement(NamedTuple):
    """A settlement and its place in the journal."""

    sequence: int
    settlement: Settlement


class Chunk(Enum):
    """What came of reading one chunk."""

    TAKEN = "taken"  # there may be more
    ENOUGH = "enough"  # the next record is beyond what was asked for
    EMPTY = "empty"  # the segment has nothing more


class JournalReader:
    """A position in a journal's segments; one thread uses it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._segment: Path | None = None
        self._offset = 0
        self.sequence = 0  # of the last record that was read

    def read(self, up_to_sequence: int, settlements_max: int) -> list[NumberedSettlement]:
        """The next settlements in order, each once; `sequence` moves over every record passed.

        Stops behind `up_to_sequence`. Damaged stretches are passed over: the replay has reported
        them."""
        settlements: list[NumberedSettlement] = []
        while len(settlements) < settlements_max and self.sequence < up_to_sequence:
            if self._segment is None and not self._next_segment():
                break
            chunk = self._read_chunk(settlements, up_to_sequence, settlements_max)
            # What is durable and not in this segment can only be in a later one.
            if chunk is Chunk.ENOUGH or (chunk is Chunk.EMPTY and not self._next_segment()):
                break
        return settlements

    def _read_chunk(
        self, settlements: list[NumberedSettlement], up_to_sequence: int, settlements_max: int
    ) -> "Chunk":
        """Take settlements from one chunk of this segment."""
        assert self._segment is not None
        try:
            with self._segment.open("rb") as file:
                file.seek(self._offset)
                data = file.read(chunk_bytes)
        except FileNotFoundError:  # read to its end, shipped and deleted
            return Chunk.EMPTY
        start_offset = self._offset
        frames = scan(data).frames
        for frame in frames:
            if frame.sequence > up_to_sequence or len(settlements) >= settlements_max:
                return Chunk.ENOUGH
            self._offset = start_offset + frame.end
            if frame.sequence > self.sequence:
                self.sequence = frame.sequence
                settlement = decode_settlement(frame)
                if settlement is not None:
                    settlements.append(NumberedSettlement(frame.sequence, settlement))
        if not frames and len(data) == chunk_bytes:
            self._offset += chunk_bytes - frame_bytes_max
            return Chunk.TAKEN
        return Chunk.TAKEN if frames else Chunk.EMPTY

    def _next_segment(self) -> bool:
        """Go to the segment behind this one; False if this is the newest."""
        current = -1 if self._segment is None else first_sequence_of(self._segment)
        for path in list_segments(self._directory):
            if first_sequence_of(path) > current:
                self._segment, self._offset = path, 0
                return True
        return False
