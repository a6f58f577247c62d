"""Ids that sort by creation time and name their kind: `req_0197...`.

The body is 48 bits of milliseconds and 80 random bits in Crockford's base 32 (the ULID layout),
so that tables keyed by id append at one end. Each request makes one, so the random halves are
drawn many at a time, which makes an id in a fifth of the time.
"""

import os

from headrace.base.clock import Clock

alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
body_length = 26
random_length = 16
random_parts_per_draw = 256

_letter_of_byte = (alphabet * 8).encode()  # 256 is a multiple of 32, so each letter is as likely
_pairs = tuple(first + second for first in alphabet for second in alphabet)
_random_parts: list[str] = []  # each is given out once
os.register_at_fork(after_in_child=_random_parts.clear)  # or parent and child would give the same


def new_id(kind: str, clock: Clock) -> str:
    """Make a unique id `<kind>_<26 characters>`; any thread may."""
    return f"{first_id(kind, clock.wall_s())}{_random_part()}"


def first_id(kind: str, wall_s: float) -> str:
    """What sorts before every id that was made at a time or later, and after every earlier one."""
    ms = int(wall_s * 1000) & (1 << 48) - 1
    time_part = (
        _pairs[ms >> 40]
        + _pairs[ms >> 30 & 1023]
        + _pairs[ms >> 20 & 1023]
        + _pairs[ms >> 10 & 1023]
        + _pairs[ms & 1023]
    )
    return f"{kind}_{time_part}"


def _random_part() -> str:
    while True:
        try:
            return _random_parts.pop()
        except IndexError:
            drawn = os.urandom(random_length * random_parts_per_draw)
            letters = drawn.translate(_letter_of_byte).decode()
            _random_parts.extend(
                letters[start : start + random_length]
                for start in range(0, len(letters), random_length)
            )
