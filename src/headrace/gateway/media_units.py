"""Sound, images and text in units that are no tokens: what a request tells of them, what its engine
tells, and the most that it can come to.

    read aloud     characters            known from the request
    listened to    milliseconds          told by the engine, else by the head of a WAV file
    made           images                told by the engine: those in its answer

Told goes before known; what nobody tells is None. The bound of a sound whose length its head does
not say is by its bytes: `bytes_per_second_min` is less than anybody records speech with.
"""

import struct
from typing import NamedTuple

import msgspec

from headrace.gateway.media_form import MediaForm
from headrace.spec.settlements import UnitCounts, unit_count_max

bytes_per_second_min = 800  # 6.4 kbit/s
rounding_ms = 1000  # an engine may count begun seconds
ms_per_s = 1000
wave_formats = (1, 3)  # samples as they are: integers, floats
wave_extensible = 0xFFFE  # the format is in the first two bytes of an id, 24 bytes on
wave_bits = (8, 16, 24, 32, 64)  # of a sample
wave_channels_max = 32
wave_rate_max = 768_000  # samples a second and channel
wave_chunks_max = 16  # before the samples
wave_ms_min = 1  # 0 would say that there is no sound, and what the engine tells would not count
image_event_suffix = ".completed"
words_for_no = ("", "false", "0", "off", "no", "f", "n")  # any other is a yes, or refused
telling_formats = ("json", "verbose_json", "diarized_json")


class Units(NamedTuple):
    """Of one request."""

    known: UnitCounts  # from itself; None: its engine tells
    most: UnitCounts
    are_told: bool = True  # by the answer that is asked for, if its engine tells at all


def spoken_units(characters: int) -> Units:
    """Of a text that is read aloud."""
    counts = UnitCounts(requests=1, characters=characters)
    return Units(counts, counts)


def made_units(images: int) -> Units:
    """Of so many images at most."""
    return Units(UnitCounts(requests=1, images=None), UnitCounts(requests=1, images=images))


def heard_units(form: MediaForm) -> Units:
    """Of the sound in a form."""
    known_ms = None
    if form.files == 1:
        known_ms = wave_ms(bytes(form.beginning), form.file_bytes)
    longest_ms = (
        form.file_bytes * ms_per_s // bytes_per_second_min if known_ms is None else known_ms
    )
    return Units(
        UnitCounts(requests=1, audio_ms=known_ms),
        UnitCounts(requests=1, audio_ms=longest_ms + rounding_ms),
        are_told=tells_length(form),
    )


def tells_length(form: MediaForm) -> bool:
    """Whether the answer that a form asks for has a place for the length of its sound."""
    is_whole = (form.field("stream") or "").strip().lower() in words_for_no
    return is_whole and (form.field("response_format") or "json") in telling_formats


def wave_ms(beginning: bytes, file_bytes: int) -> int | None:
    """The length of a WAV file with plain samples; None for anything else.

    By the size of the file, which cannot say less than there is, as a head can. A head that two
    readers might read differently says nothing: two formats, or one for samples that none has."""
    if beginning[:4] != b"RIFF" or beginning[8:12] != b"WAVE":
        return None
    position, bytes_per_second = 12, 0
    for _ in range(wave_chunks_max):
        if position + 8 > len(beginning):
            return None
        name, size = struct.unpack_from("<4sI", beginning, position)
        position += 8
        if name == b"fmt ":
            if bytes_per_second:
                return None
            bytes_per_second = wave_bytes_per_second(beginning[position : position + size])
        elif name == b"data":
            if not bytes_per_second:
                return None
            found_ms = (file_bytes - position) * ms_per_s // bytes_per_second
            return min(max(found_ms, wave_ms_min), unit_count_max)
        position += size + size % 2
    return None


def wave_bytes_per_second(form: bytes) -> int:
    """Of the samples that a `fmt ` chunk describes; 0 if they are not as they are."""
    if len(form) < 16:
        return 0
    kind, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", form)
    if kind == wave_extensible:
        kind = int.from_bytes(form[24:26], "little")
    is_plain = (
        kind in wave_formats
        and bits in wave_bits
        and channels <= wave_channels_max
        and rate <= wave_rate_max
        and frame_bytes == channels * bits // 8
    )
    return rate * frame_bytes if is_plain else 0


class ToldUnits(NamedTuple):
    """What an engine told; None: nothing."""

    images: int | None = None
    audio_ms: int | None = None

    def over(self, known: UnitCounts) -> UnitCounts:
        """What counts of both; what a route does not use stays 0."""
        return msgspec.structs.replace(
            known,
            images=known.images if self.images is None or known.images == 0 else self.images,
            audio_ms=known.audio_ms
            if self.audio_ms is None or known.audio_ms == 0
            else self.audio_ms,
        )

    def and_event(self, data: bytes) -> "ToldUnits":
        """With what one event of a stream tells."""
        answer = _decoded(data)
        if answer is None:
            return self
        told = answer.told()
        if answer.type.startswith("image_") and answer.type.endswith(image_event_suffix):
            return ToldUnits((self.images or 0) + 1, told.audio_ms or self.audio_ms)
        return ToldUnits(self.images, self.audio_ms if told.audio_ms is None else told.audio_ms)


class Item(msgspec.Struct):
    """An image, which is not looked at."""


class TimedUse(msgspec.Struct):
    """Use by time."""

    type: str = ""
    seconds: float | None = None


class Answer(msgspec.Struct):
    """The part of an answer, or of an event, that tells units."""

    type: str = ""
    data: list[Item] | None = None
    usage: TimedUse | None = None
    duration: float | str | None = None  # of verbose transcriptions; some engines write text

    def told(self) -> ToldUnits:
        """What it tells."""
        seconds = self.usage.seconds if self.usage and self.usage.type == "duration" else None
        audio_ms = milliseconds(self.duration if seconds is None else seconds)
        return ToldUnits(None if self.data is None else len(self.data), audio_ms)


_answer = msgspec.json.Decoder(Answer)


def told_units(data: bytes) -> ToldUnits:
    """What an answer in JSON tells."""
    answer = _decoded(data)
    return ToldUnits() if answer is None else answer.told()


def _decoded(data: bytes) -> Answer | None:
    try:
        return _answer.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def milliseconds(seconds: float | str | None) -> int | None:
    """Seconds as an engine wrote them; None for what is no length."""
    try:
        value = None if seconds is None else float(seconds)
    except ValueError:
        return None
    if value is None or not 0 <= value <= unit_count_max / ms_per_s:
        return None
    return round(value * ms_per_s)
