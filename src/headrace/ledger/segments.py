"""The journal's files: numbered segments in one directory, read back record by record.

    <first sequence, 20 digits>.segment    records, in order; the newest one is written
    emergency.reserve                      zeros, renamed to a segment when the disk is full
    quarantine/                            copies of segments that were found damaged
    id, lock                               the journal's name in the ledger; held while in use

A segment's name survives when its records are gone, so sequences never start again.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.ledger.frames import Damage, Frame, scan
from headrace.ledger.reservation import Checkpoint, Reserve, Settle, Settlement

JournalRecord = Reserve | Checkpoint | Settle

encoder = msgspec.msgpack.Encoder()
decoder = msgspec.msgpack.Decoder(JournalRecord)

# A msgpack array of two, whose first element is the tag of `Settle`: most records are others, and
# need not be decoded to be passed over.
settle_prefix = b"\x92\x03"

segment_suffix = ".segment"
emergency_name = "emergency.reserve"
quarantine_name = "quarantine"
quarantined_max = 16  # copies of damaged segments that are kept for people to look at


class Numbered(NamedTuple):
    """A record and its place in the journal."""

    sequence: int
    record: JournalRecord


class SegmentContent(NamedTuple):
    """What was read from one segment."""

    records: list[Numbered]
    damages: list[Damage]
    end: int  # the offset behind the last good record
    torn: bool


def segment_path(directory: Path, first_sequence: int) -> Path:
    """Where the segment that starts at a sequence lies."""
    return directory / f"{first_sequence:020d}{segment_suffix}"


def first_sequence_of(path: Path) -> int:
    """The sequence that a segment starts at."""
    return int(path.name.removesuffix(segment_suffix))


def list_segments(directory: Path) -> list[Path]:
    """Every segment, the oldest first."""
    return sorted(directory.glob(f"[0-9]*{segment_suffix}"), key=first_sequence_of)


def read_segment(path: Path) -> SegmentContent:
    """Every good record of a segment; one that cannot be decoded counts as damage."""
    found = scan(path.read_bytes())
    records: list[Numbered] = []
    damages = list(found.damages)
    for frame in found.frames:
        record = decode_record(frame)
        if record is None:
            damages.append(Damage(frame.end - len(frame.payload), frame.end))
        else:
            records.append(Numbered(frame.sequence, record))
    return SegmentContent(records, damages, found.end, found.torn)


def decode_settlement(frame: Frame) -> Settlement | None:
    """The settlement in a frame, or None if it is another record or cannot be read."""
    if not frame.payload.startswith(settle_prefix):
        return None
    record = decode_record(frame)
    return record.settlement if isinstance(record, Settle) else None


def decode_record(frame: Frame) -> JournalRecord | None:
    """The record in a frame, or None if this program cannot read it."""
    try:
        return decoder.decode(frame.payload)
    except msgspec.MsgspecError:
        return None


def quarantine(path: Path) -> Path | None:
    """Copy a damaged segment aside for people to look at; None if enough lie there already."""
    directory = path.parent / quarantine_name
    directory.mkdir(mode=0o700, exist_ok=True)
    copy = directory / path.name
    if copy.exists() or len(list(directory.iterdir())) >= quarantined_max:
        return None
    shutil.copyfile(path, copy)
    copy.chmod(0o600)
    return copy
