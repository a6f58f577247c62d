"""Models that lie on this machine already: taken where they are, under a digest of their bytes."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from headrace.base.errors import SourceError
from headrace.spec.models import VersionFile
from headrace.weights.cache import ModelCache, chunk_bytes, key_of
from headrace.weights.progress import Progress

directory_endings = (".json", ".safetensors", ".jinja")  # of files that a directory's model is
pooling_name = "1_Pooling/config.json"
first_part_pattern = re.compile(r"(?P<stem>.+)-00001-of-(?P<count>\d{5})\.gguf")  # of a split GGUF
parts_max = 1_000


def digest_of_path(path: Path, cache: ModelCache, progress: Progress) -> str:
    """A file's digest, from the cache if it was computed for this size and time of it."""
    status = path.stat()
    key = key_of(f"{path}\0{status.st_size}\0{status.st_mtime_ns}")
    sha256 = cache.find(key)
    if sha256 is None:
        sha256 = _digest(path, status.st_size, progress)
        cache.remember(key, str(path), sha256)
    return sha256


def files_of_directory(
    path: Path, cache: ModelCache, progress: Progress
) -> tuple[VersionFile, ...]:
    """The files that make the model up."""
    names = [file.name for file in path.iterdir() if file.suffix in directory_endings]
    if (path / pooling_name).is_file():
        names.append(pooling_name)
    return _files_by_name(path, names, cache, progress)


def files_of_parts(path: Path, cache: ModelCache, progress: Progress) -> tuple[VersionFile, ...]:
    """The parts of a split GGUF file of which this is the first; empty of any other file.

    The model's own digest stays that of the first part; SourceError if another is not there."""
    found = first_part_pattern.fullmatch(path.name)
    count = 0 if found is None else int(found["count"])
    if found is None or not 1 < count <= parts_max:
        return ()
    names = [f"{found['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    for name in names:
        if not (path.parent / name).is_file():
            raise SourceError(f"{path}: the part {name} is missing; it must lie beside the first.")
    return _files_by_name(path.parent, names, cache, progress)


def _files_by_name(
    directory: Path, names: Iterable[str], cache: ModelCache, progress: Progress
) -> tuple[VersionFile, ...]:
    paths = {name: directory / name for name in sorted(names)}
    return tuple(
        VersionFile(name, digest_of_path(path, cache, progress), path.stat().st_size)
        for name, path in paths.items()
    )


def digest_of_files(files: Iterable[tuple[str, str]]) -> str:
    """One digest of files' names and digests, in any order."""
    lines = [f"{sha256}  {name}\n" for name, sha256 in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


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
