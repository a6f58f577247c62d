"""What is known of sound and images besides tokens."""

import io
import struct
import wave

import pytest

from headrace.gateway.media_units import ToldUnits, told_units, wave_ms
from headrace.spec.settlements import UnitCounts


def recorded(seconds: float, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(bytes(int(seconds * rate) * 2))
    return file.getvalue()


def test_a_wav_file_says_how_long_it_is() -> None:
    data = recorded(2.5)
    assert wave_ms(data[:1024], len(data)) == 2500


def test_a_head_cannot_make_a_sound_shorter_than_its_bytes() -> None:
    data = bytearray(recorded(2.5))
    struct.pack_into("<I", data, 40, 0)  # the samples' length
    assert wave_ms(bytes(data[:1024]), len(data)) == 2500


@pytest.mark.parametrize("seconds", [0.0, 0.0004])
def test_what_an_engine_tells_of_the_shortest_sound_counts(seconds: float) -> None:
    data = recorded(seconds)
    known = UnitCounts(1, 0, wave_ms(data, len(data)))
    assert ToldUnits(audio_ms=3_000).over(known).audio_ms == 3_000
    assert ToldUnits().over(known).audio_ms == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF",
        b"RIFF\0\0\0\0WAVE",
        b"RIFF\0\0\0\0WAVEdata\0\0\0\0",  # no format
        b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + bytes(16) + b"data\0\0\0\0",  # no rate
        b"RIFF\0\0\0\0WAVE" + b"junk\0\0\0\0" * 100,
        b"ID3" + bytes(100),
    ],
)
def test_what_is_no_plain_sound_says_nothing(data: bytes) -> None:
    assert wave_ms(data, len(data)) is None


def head(kind: int, channels: int, rate: int, frame: int, bits: int, more: bytes = b"") -> bytes:
    """A `fmt ` chunk."""
    form = struct.pack("<HHIIHH", kind, channels, rate, 0, frame, bits) + more
    return b"fmt " + struct.pack("<I", len(form)) + form


def extended(subformat: int) -> bytes:
    return struct.pack("<HHIH14s", 22, 16, 4, subformat, bytes(14))


@pytest.mark.parametrize(
    ("form", "length_ms"),
    [
        (head(1, 2, 8_000, 4, 16), 1_000),
        (head(3, 1, 8_000, 4, 32), 1_000),
        (head(0xFFFE, 2, 8_000, 4, 16, extended(1)), 1_000),
        (head(0xFFFE, 2, 8_000, 4, 16, extended(0x55)), None),  # MP3 in it
        (head(0xFFFE, 2, 8_000, 4, 16), None),  # it does not say what is in it
        (head(1, 1, 4_000_000_000, 2, 16), None),  # shorter than anybody plays it
        (head(1, 65_535, 8_000, 65_534, 8), None),
        (head(1, 1, 8_000, 8_191, 65_528), None),
        (head(1, 1, 8_000, 4_096, 16), None),  # frames that are not of these samples
        (head(1, 1, 8_000, 2, 12), None),
        (head(1, 2, 8_000, 4, 16) + head(1, 2, 700_000, 4, 16), None),  # which of the two?
    ],
)
def test_a_head_that_might_be_read_in_two_ways_says_nothing(
    form: bytes, length_ms: int | None
) -> None:
    data = b"RIFF\0\0\0\0WAVE" + form + b"data\0\0\0\0" + bytes(32_000)
    assert wave_ms(data[:1024], len(data)) == length_ms


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b'{"data":[{"b64_json":"AA"},{}]}', ToldUnits(images=2)),
        (b'{"usage":{"type":"duration","seconds":3}}', ToldUnits(audio_ms=3000)),
        (b'{"duration":"8.47"}', ToldUnits(audio_ms=8470)),
        (b'{"usage":{"type":"tokens","input_tokens":4}}', ToldUnits()),
        (b'{"duration":1e300}', ToldUnits()),
        (b'{"duration":-1}', ToldUnits()),
        (b'{"duration":"nan"}', ToldUnits()),
        (b"[" * 100_000, ToldUnits()),
        (b"\xff", ToldUnits()),
    ],
)
def test_what_engines_tell(answer: bytes, told: ToldUnits) -> None:
    assert told_units(answer) == told


def test_images_of_a_stream_are_counted_as_they_are_done() -> None:
    told = ToldUnits()
    for kind in ("partial_image", "completed", "partial_image", "completed"):
        told = told.and_event(b'{"type":"image_generation.' + kind.encode() + b'"}')
    assert told.over(UnitCounts(1, None)) == UnitCounts(1, 2)
    assert told.over(UnitCounts(1, 0, 4000)) == UnitCounts(1, 0, 4000)  # a route that makes none
