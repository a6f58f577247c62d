"""What the model cache holds, and what may go: models, adapters, quantized copies, packed weights.

A model of several files is one item with its blobs, which may belong to others as well. What no
start can find any more is stale: copies of an older quantizer, weights packed in another layout.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.weights.cache import ModelCache, check_prefix
from headrace.weights.file_use import is_in_use, remove_unless_used, used_time_s
from headrace.weights.lora.opening import directory_name
from headrace.weights.quantized_copy import quantizer_version

digest_characters = 64


class ItemKind(StrEnum):
    """What an item of the cache is."""

    MODEL = "model"
    ADAPTER = "adapter"
    COPY = "copy"  # a model as `--quantize` made it
    PACKED = "packed"  # weights in the kernels' order (packed_cache.py)
    UNFINISHED = "unfinished"  # what the next try to fetch continues


@dataclass(frozen=True, slots=True)
class CacheItem:
    """One thing that is removed as a whole."""

    kind: ItemKind
    name: str  # what led to it, or its digest
    key: str  # digest, or the key of what is fetched
    paths: tuple[Path, ...]
    guards: tuple[Path, ...]  # held by whoever is at work on it, beside the paths themselves
    size_bytes: int
    create_time_s: float
    use_time_s: float
    is_stale: bool = False

    @property
    def is_in_use(self) -> bool:
        """Whether a process relies on it now."""
        return is_in_use((*self.paths, *self.guards))


@dataclass(frozen=True, slots=True)
class PrunePolicy:
    """What is to go; stale items always are. None: no such bound."""

    kinds: frozenset[ItemKind] = frozenset(ItemKind)
    unused_s_min: float | None = None  # who was not used for as long
    size_bytes_max: int | None = None  # of what stays; those unused for longest go first


@dataclass(frozen=True, slots=True)
class _Origin:
    """What an index record says of a digest."""

    reference: str
    quantizer: int | None  # of a quantized copy


def cache_items(cache: ModelCache, layout: str) -> list[CacheItem]:
    """All that lies in the cache, the last used first; `layout` is what this build's kernels read.

    Cost: a look at each file, no byte of them."""
    origins = _origins(cache)
    items = [
        *_models(cache, origins),
        *_packed(cache, origins, layout),
        *_unfinished(cache),
    ]
    return sorted(items, key=lambda item: (-item.use_time_s, item.key))


def chosen(items: Sequence[CacheItem], policy: PrunePolicy, now_s: float) -> list[CacheItem]:
    """Which items the policy gives up, those unused for longest first; those in use never."""
    oldest_first = sorted(items, key=lambda item: item.use_time_s)
    size_bytes = sum(item.size_bytes for item in items)
    out = []
    for item in oldest_first:
        too_old = policy.unused_s_min is not None and (
            now_s - item.use_time_s >= policy.unused_s_min
        )
        too_much = policy.size_bytes_max is not None and size_bytes > policy.size_bytes_max
        if item.kind in policy.kinds and (item.is_stale or too_old or too_much):
            if item.is_in_use:
                continue
            out.append(item)
            size_bytes -= item.size_bytes
    return out


def remove(cache: ModelCache, item: CacheItem) -> bool:
    """Remove an item and forget what led to it; False if a process has taken it into use since."""
    linked = _linked_blobs(cache, but=item.paths[0])
    paths = [path for path in item.paths if path not in linked]
    if not remove_unless_used(paths, guards=item.guards):
        return False
    gone = {path.name for path in paths}  # digests, where it is no packed or unfinished file
    for record, _, sha256 in _records(cache):
        if sha256 in gone:
            record.unlink(missing_ok=True)
    return True


def _models(cache: ModelCache, origins: Mapping[str, _Origin]) -> Iterator[CacheItem]:
    members: set[Path] = set()
    for directory in _directories(cache):
        blobs = tuple(_blobs_of(directory))
        members.update(blobs)
        is_adapter = directory.parent.name == directory_name
        kind = ItemKind.ADAPTER if is_adapter else ItemKind.MODEL
        if len(directory.name) == digest_characters:
            yield _item(kind, directory.name, (directory, *blobs), origins)
    for blob in _listed(cache.root / "blobs" / "sha256", "*"):
        if blob in members:
            continue
        origin = origins.get(blob.name)
        if origin is None or origin.quantizer is None:
            yield _item(ItemKind.MODEL, blob.name, (blob,), origins)
        else:
            stale = origin.quantizer != quantizer_version
            yield _item(ItemKind.COPY, blob.name, (blob,), origins, is_stale=stale)


def _packed(cache: ModelCache, origins: Mapping[str, _Origin], layout: str) -> Iterator[CacheItem]:
    for file in _listed(cache.root / "packed", "*.weights"):
        digest, _, rest = file.name.removesuffix(".weights").partition("-")
        stale = rest != layout and not rest.startswith(f"{layout}-")
        yield _item(ItemKind.PACKED, digest, (file,), origins, is_stale=stale)
    for file in _listed(cache.root / "packed", "*.tmp"):
        yield _item(ItemKind.UNFINISHED, file.name, (file,), origins, is_stale=True)


def _unfinished(cache: ModelCache) -> Iterator[CacheItem]:
    for file in _listed(cache.root / "partial", "*"):
        guard = cache.root / "locks" / file.name[:digest_characters]
        yield _item(ItemKind.UNFINISHED, file.name, (file,), {}, guards=(guard,))


def _item(
    kind: ItemKind,
    key: str,
    paths: tuple[Path, ...],
    origins: Mapping[str, _Origin],
    *,
    guards: tuple[Path, ...] = (),
    is_stale: bool = False,
) -> CacheItem:
    states = [path.stat() for path in paths if path.is_file()]
    origin = origins.get(key)
    used_s = used_time_s(paths[0])
    if kind is ItemKind.ADAPTER:  # its files are held, and lead to the name
        origin = origin or origins.get(paths[-1].name)
        used_s = max(used_time_s(path) for path in paths)
    return CacheItem(
        kind,
        key if origin is None else origin.reference,
        key,
        paths,
        guards,
        sum(state.st_size for state in states),
        max((state.st_mtime for state in states), default=0.0),
        used_s,
        is_stale,
    )


def _origins(cache: ModelCache) -> dict[str, _Origin]:
    """What led to each digest: a copy's origin before a reference, that before a mere path."""
    out: dict[str, _Origin] = {}
    for _, origin, sha256 in _records(cache):
        if origin.reference.startswith(check_prefix):
            continue
        if sha256 not in out or _rank(origin) > _rank(out[sha256]):
            out[sha256] = origin
    return out


def _rank(origin: _Origin) -> tuple[bool, bool]:
    return origin.quantizer is not None, not origin.reference.startswith("/")


def _records(cache: ModelCache) -> Iterator[tuple[Path, _Origin, str]]:
    for path in _listed(cache.root / "index", "*.json"):
        try:
            record = json.loads(path.read_bytes())
            quantizer = record.get("quantizer")
            yield path, _Origin(str(record["reference"]), quantizer), str(record["sha256"])
        except (OSError, ValueError, KeyError, AttributeError):
            continue  # no record of ours; nothing finds anything by it


def _linked_blobs(cache: ModelCache, but: Path) -> set[Path]:
    """The blobs that other models of several files are made of."""
    others = (directory for directory in _directories(cache) if directory != but)
    return {blob for other in others for blob in _blobs_of(other)}


def _directories(cache: ModelCache) -> list[Path]:
    """Of models and adapters of several files."""
    return [
        directory
        for name in ("directories", directory_name)
        for directory in _listed(cache.root / name, "*")
    ]


def _blobs_of(directory: Path) -> Iterable[Path]:
    return (file.resolve() for file in sorted(directory.rglob("*")) if file.is_symlink())


def _listed(directory: Path, pattern: str) -> list[Path]:
    """In order; nothing where there is no such directory. Symbolic links above it are followed."""
    return sorted(directory.resolve().glob(pattern))
