"""Model sources: from what a user names to verified files on this machine.

A second call for the same reference fetches nothing. Reading order: `reference` (what may be
named), `catalogue`, `fetching` (one file), `bundle` (models of several), `local_path`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import SourceError
from headrace.spec.models import VersionFile
from headrace.weights import catalogue
from headrace.weights.bundle import fetch_entry, fetch_repository
from headrace.weights.cache import ModelCache
from headrace.weights.catalogue import CatalogueEntry
from headrace.weights.download import Pause
from headrace.weights.expected_files import check_digests, check_files, digests_of
from headrace.weights.fetching import Fetcher, Wanted, mismatch
from headrace.weights.huggingface.directory import is_model_directory
from headrace.weights.local_path import (
    digest_of_files,
    digest_of_path,
    files_of_directory,
    files_of_parts,
)
from headrace.weights.progress import Progress
from headrace.weights.reference import HubRepository, PathSource, Reference, parse_reference

names_shown = 4  # of the catalogue, where one is wrong


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model file or directory that is here, whole, and what it is."""

    path: Path
    sha256: str
    name: str  # of the catalogue, or the file's without its ending
    files: tuple[VersionFile, ...] = ()  # of a directory, or the parts of a split file


def resolve(
    reference: str,
    cache_dir: Path,
    progress: Progress,
    *,
    expected: Sequence[VersionFile] = (),
    pause: Pause = time.sleep,
) -> ResolvedModel:
    """Find the model in the cache or fetch it there; blocks until it is whole and verified.

    Each of its files must be the one that is `expected` by that name, where any are. Raises
    SourceError, which says what to do, or DigestMismatch, which names the file and both digests."""
    fetcher = Fetcher(ModelCache(cache_dir), progress, pause)
    entry = catalogue.find(reference)
    if entry is not None:
        return _resolve_entry(fetcher, entry, expected)
    parsed = parse_reference(reference)
    if isinstance(parsed.source, PathSource):
        return _resolve_path(fetcher, parsed, parsed.source, expected)
    if isinstance(parsed.source, HubRepository):
        return _resolve_repository(fetcher, parsed, parsed.source, parsed.name, expected)
    wanted = Wanted(parsed, parsed.sha256 or digest_of_one(expected))
    return _resolve_file(fetcher, wanted, parsed.name, expected)


def digest_of_one(expected: Sequence[VersionFile]) -> str | None:
    """The digest of a model that is one file, where it is known."""
    return expected[0].sha256 if len(expected) == 1 else None


def _resolve_entry(
    fetcher: Fetcher, entry: CatalogueEntry, expected: Sequence[VersionFile]
) -> ResolvedModel:
    failures: list[str] = []
    for text in entry.references:
        try:
            if entry.files:
                bundle = fetch_entry(fetcher, entry, text)
                check_files(entry.name, bundle.files, expected, "It was left in the cache.")
                return ResolvedModel(bundle.path, bundle.sha256, entry.name, bundle.files)
            parsed = parse_reference(text)
            if isinstance(parsed.source, HubRepository):
                return _resolve_repository(fetcher, parsed, parsed.source, entry.name, expected)
            sha256 = entry.sha256 or parsed.sha256 or digest_of_one(expected)
            wanted = Wanted(parsed, sha256, entry.size_bytes)
            return _resolve_file(fetcher, wanted, entry.name, expected)
        except SourceError as error:
            if len(entry.references) == 1:
                raise
            failures.append(error.message)
    raise SourceError(f"{entry.name}: no source of it worked. " + " ".join(failures))


def _resolve_repository(
    fetcher: Fetcher,
    reference: Reference,
    source: HubRepository,
    name: str,
    expected: Sequence[VersionFile],
) -> ResolvedModel:
    bundle = fetch_repository(fetcher, reference, source, expected)
    if reference.sha256 not in (None, bundle.sha256):
        raise mismatch(reference.text, reference.sha256, bundle.sha256, "It was left in the cache.")
    return ResolvedModel(bundle.path, bundle.sha256, name, bundle.files)


def _resolve_file(
    fetcher: Fetcher, wanted: Wanted, name: str, expected: Sequence[VersionFile]
) -> ResolvedModel:
    sha256 = fetcher.fetch(wanted)
    if digest_of_one(expected) is not None:
        found = {expected[0].name: sha256}
        check_digests(
            wanted.reference.text, found, digests_of(expected), "It was left in the cache."
        )
    return ResolvedModel(fetcher.cache.blob_path(sha256), sha256, name)


def _resolve_path(
    fetcher: Fetcher, reference: Reference, source: PathSource, expected: Sequence[VersionFile]
) -> ResolvedModel:
    """Take a model where it lies; a digest is computed once a version (size and time) of a file."""
    path = Path(source.path).expanduser().absolute()
    try:
        path.stat()
    except OSError as error:
        raise _no_such_file(source.path, error) from error
    files: tuple[VersionFile, ...] = ()
    if is_model_directory(path):
        files = files_of_directory(path, fetcher.cache, fetcher.progress)
        check_files(str(path), files, expected, "It was left as it is.")
        sha256 = digest_of_files((file.name, file.sha256) for file in files)
        name = path.name
    elif path.is_file():
        files = files_of_parts(path, fetcher.cache, fetcher.progress)
        # Of one file the digest below is all there is to say, and all that was once written down.
        if files and len(expected) > 1:
            check_files(str(path.parent), files, expected, "It was left as it is.")
        sha256 = digest_of_path(path, fetcher.cache, fetcher.progress)
        name = reference.name
    else:
        raise SourceError(
            f"{path} is not a file, nor a directory with a config.json; give the path of a model."
        )
    if reference.sha256 not in (None, sha256):
        raise mismatch(str(path), reference.sha256, sha256, "It was left as it is.")
    return ResolvedModel(path, sha256, name, files)


def _no_such_file(text: str, error: OSError) -> SourceError:
    names = catalogue.names_like(text)[:names_shown]
    why = "" if isinstance(error, FileNotFoundError) else f" ({error.strerror})"
    return SourceError(
        f"{text}: there is no such file{why} and no such name in the catalogue, which has "
        f"{', '.join(names)} and others (`headrace models catalogue`). Give one of those, the path "
        "of a GGUF file or of a safetensors directory, or an https://, hf:// or pypi:// reference."
    )
