"""Reading single numbers out of Prometheus' text format, whatever else an engine prints there.

A client library's parser refuses a whole answer for one bad line; load that is reported by nine
good lines of ten is still load.
"""

import math
import re
from collections.abc import Iterable, Mapping

# Braces may stand inside a label's value, and OpenMetrics puts more of them behind the sample.
labels_pattern = re.compile(r'\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}')


def read_values(text: str, names: Iterable[str]) -> Mapping[str, list[float]]:
    """The values of these sample names, one for each set of labels; absent names are left out.

    Lines that are not samples with a finite value are ignored."""
    wanted = frozenset(names)
    values: dict[str, list[float]] = {}
    for line in text.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name not in wanted:
            continue
        value = _value(line[len(name) :])
        if value is not None:
            values.setdefault(name, []).append(value)
    return values


def read_samples(text: str, names: Iterable[str]) -> Mapping[str, float]:
    """The values of these sample names, summed over their labels; absent names are left out."""
    return {name: sum(values) for name, values in read_values(text, names).items()}


def _value(rest: str) -> float | None:
    """The value in what follows a sample's name: labels in braces, a value, perhaps a time."""
    if rest.startswith("{"):
        labels = labels_pattern.match(rest)
        if labels is None:
            return None
        rest = rest[labels.end() :]
    parts = rest.split()
    try:
        value = float(parts[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None
