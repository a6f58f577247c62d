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
