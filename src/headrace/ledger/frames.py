"""One journal record on disk: framed, numbered and checksummed.

    | magic 4 | length 4 | sequence 8 | crc32 4 | payload |      little endian

The checksum covers length, sequence and payload. The magic lets a reader find the next record
after damage, and the sequence tells it what is missing.
"""

import struct
import zlib
from typing import NamedTuple

magic = b"HRJ\x01"
header = struct.Struct("<4sIQI")
summed = struct.Struct("<IQ")
payload_bytes_max = 64 * 1024  # a record is a few hundred bytes; more is damage


class Frame(NamedTuple):
    """A record that was read back whole."""

    sequence: int
    payload: bytes
    end: int  # the offset behind it


class Damage(NamedTuple):
    """Bytes between two good records that are none."""

    start: int
    end: int


class Scan(NamedTuple):
    """What a segment's bytes hold."""

    frames: list[Frame]
    damages: list[Damage]
    end: int  # behind the last good record
    torn: bool  # something that is not blank follows `end`


def encode_frame(sequence: int, payload: bytes) -> bytes:
    """Frame one payload."""
    length = len(payload)
    if not 0 < length <= payload_bytes_max:
        raise ValueError(f"a journal record has 1 to {payload_bytes_max} bytes, not {length}")
    checksum = zlib.crc32(payload, zlib.crc32(summed.pack(length, sequence)))
    return header.pack(magic, length, sequence, checksum) + payload


def read_frame(data: bytes, start: int) -> Frame | None:
    """The record at an offset, or None if no whole and good one is there."""
    payload_start = start + header.size
    if payload_start > len(data):
        return None
    found_magic, length, sequence, checksum = header.unpack_from(data, start)
    end = payload_start + length
    if found_magic != magic or not 0 < length <= payload_bytes_max or end > len(data):
        return None
    payload = data[payload_start:end]
    if zlib.crc32(payload, zlib.crc32(summed.pack(length, sequence))) != checksum:
        return None
    return Frame(sequence, payload, end)


def scan(data: bytes) -> Scan:
    """Every good record of a segment; what lies between two of them is damage."""
    frames: list[Frame] = []
    damages: list[Damage] = []
    start = end = 0
    while start < len(data):
        frame = read_frame(data, start)
        if frame is not None:
            if start > end:
                damages.append(Damage(end, start))
            frames.append(frame)
            start = end = frame.end
            continue
        start = data.find(magic, start + 1)
        if start < 0:
            break
    # A preallocated segment ends in zeros, which are no damage.
    return Scan(frames, damages, end, torn=bool(data[end:].strip(b"\0")))
