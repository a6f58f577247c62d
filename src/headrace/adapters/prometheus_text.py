"""Reading single numbers out of Prometheus' text format, whatever else an engine prints there.

A client library's parser refuses a whole answer for one bad line; load that is reported by nine
good lines of ten is still load.
"""

import math
from collections.abc import Iterable, Mapping


def read_samples(text: str, names: Iterable[str]) -> Mapping[str, float]:
    """The values of these sample names, summed over their labels; absent names are left out.

    Lines that are not samples with a finite value are ignored."""
    wanted = frozenset(names)
    values: dict[str, float] = {}
    for line in text.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name not in wanted:
            continue
        value = _value(line[len(name) :])
        if value is not None:
            values[name] = values.get(name, 0.0) + value
    return values


def _value(rest: str) -> float | None:
    """The value in what follows a sample's name: labels in braces, a value, perhaps a time."""
    if rest.startswith("{"):
        _, closed, rest = rest.rpartition("}")
        if not closed:
            return None
    parts = rest.split()
    try:
        value = float(parts[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None
