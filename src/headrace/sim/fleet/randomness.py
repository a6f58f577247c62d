"""One stream of random numbers for each part of a simulation, all from one seed.

A part's numbers depend on the seed and its own name only, so a fault that is added, or a policy
that draws more, changes nobody else's: two policies meet the very same arrivals and lengths.
"""

import random
from hashlib import blake2b


def stream(seed: int, name: str) -> random.Random:
    """The generator of the part called `name`."""
    digest = blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "little"))  # noqa: S311 - repeatable by intent
