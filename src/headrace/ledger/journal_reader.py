"""Reads a journal from its oldest record on, a bounded batch at a time, while it is written."""

from enum import Enum
from pathlib import Path

from headrace.ledger.frames import header, payload_bytes_max, scan
from headrace.ledger.segments import (
    Numbered,
    decode_record,
    first_sequence_of,
    list_segments,
)

frame_bytes_max = header.size + payload_bytes_max
chunk_bytes = 4 * frame_bytes_max  # read at once; more than one frame, so that damage is passed


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

    def read(self, up_to_sequence: int, records_max: int) -> list[Numbered]:
        """The next records in order, each once; empty when there are none up to that sequence.

        Damaged stretches are passed over: the replay has reported them."""
        records: list[Numbered] = []
        while len(records) < records_max and self.sequence < up_to_sequence:
            if self._segment is None and not self._next_segment():
                break
            chunk = self._read_chunk(records, up_to_sequence, records_max)
            # What is durable and not in this segment can only be in a later one.
            if chunk is Chunk.ENOUGH or (chunk is Chunk.EMPTY and not self._next_segment()):
                break
        return records

    def _read_chunk(
        self, records: list[Numbered], up_to_sequence: int, records_max: int
    ) -> "Chunk":
        """Take records from one chunk of this segment."""
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
            if frame.sequence > up_to_sequence or len(records) >= records_max:
                return Chunk.ENOUGH
            self._offset = start_offset + frame.end
            record = decode_record(frame)
            if frame.sequence > self.sequence:
                self.sequence = frame.sequence
                if record is not None:
                    records.append(Numbered(frame.sequence, record))
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
