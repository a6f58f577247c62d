"""Labels of nodes: names and values that selectors compare, within bounds."""

import re
from collections.abc import Mapping

from headrace.base.errors import InvalidRequest

label_pattern = re.compile(r"[A-Za-z0-9]([A-Za-z0-9./_-]{0,126}[A-Za-z0-9])?")
labels_max = 64


def check_labels(labels: Mapping[str, str]) -> None:
    """InvalidRequest for too many labels, or words that are none."""
    if len(labels) > labels_max:
        raise InvalidRequest(f"labels: at most {labels_max}", param="labels")
    for name, value in labels.items():
        if not label_pattern.fullmatch(name) or not (value == "" or label_pattern.fullmatch(value)):
            raise InvalidRequest(
                f"labels: {name}={value} is none; use letters, digits and `./_-` within",
                param="labels",
            )
