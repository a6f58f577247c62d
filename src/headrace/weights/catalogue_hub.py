"""Models of the hub that the catalogue knows: what their publishers say of them, and no digest.

A name stands for one file, where the publisher has a GGUF of a handy precision, or for the
repository's safetensors. Parameters are rounded as publishers do. The rows are in
`catalogue_hub.csv`.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

table = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True, slots=True)
class HubModel:
    """One model of the hub."""

    name: str
    place: str  # owner/repository, or a file in it
    family: str
    billions: float  # of parameters
    context_length: int
    licence: str
    tasks: tuple[str, ...]
    description: str


def read_table() -> tuple[HubModel, ...]:
    """The rows, in their order."""
    with table.open(encoding="utf-8", newline="") as file:
        return tuple(map(_model, csv.DictReader(file, strict=True)))


def _model(row: Mapping[str, str]) -> HubModel:
    return HubModel(
        name=row["name"],
        place=row["place"],
        family=row["family"],
        billions=float(row["billions"]),
        context_length=int(row["context_length"]),
        licence=row["licence"],
        tasks=tuple(row["tasks"].split()),
        description=row["description"],
    )


hub_models = read_table()
