"""Ids that sort by creation time and name their kind: `req_0197...`.

The body is 48 bits of milliseconds and 80 random bits in Crockford's base 32 (the ULID layout),
so that tables keyed by id append at one end.
"""

import secrets

from headrace.base.clock import Clock

alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
body_length = 26


def new_id(kind: str, clock: Clock) -> str:
    """Make a unique id `<kind>_<26 characters>`."""
    value = (int(clock.wall_s() * 1000) & (1 << 48) - 1) << 80 | secrets.randbits(80)
    body = "".join(alphabet[value >> shift & 31] for shift in range(125, -1, -5))
    return f"{kind}_{body}"
