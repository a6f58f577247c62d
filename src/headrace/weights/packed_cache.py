"""Where packed weights lie between two loads: in the model cache, by the model's digest.

    <root>/packed/<digest>-<layout>.weights   mapped by every engine of that model and layout
    <root>/packed/<digest>-<layout>-<rank>of<ranks>.weights   a part, where ranks share the model
    <root>/packed/*.tmp                       being written, while its writer holds a lock on it

The file is written by the first load (csrc/model/packed_file.hpp). It can be lost at any time: the
next load makes it again, and a process that has it mapped keeps it.
"""

import fcntl
import os
import shutil
from pathlib import Path

from headrace.weights.cache import ModelCache

packed_files_max = 8  # of models, layouts and ranks; those not loaded for longest go first
free_share_min = 2.0  # of the model's size must be free before packed weights are kept


def packed_path(
    cache: ModelCache, sha256: str, layout: str, model_bytes: int, ranks: int = 1
) -> Path | None:
    """Where the packed weights of a model are or may be put; None if the cache has no room.

    Marks them, or the parts of its ranks, as used, and makes room by removing those that were not
    for longest."""
    directory = cache.root / "packed"
    path = directory / f"{sha256}-{layout}.weights"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        parts = [path_of_rank(path, rank, ranks) for rank in range(ranks)]
        kept = [part for part in parts if part.exists()]
        for part in kept:
            os.utime(part)
        missing = len(parts) - len(kept)
        prune_packed(cache, packed_files_max - missing)
        if missing and shutil.disk_usage(directory).free < free_share_min * model_bytes:
            return None
    except OSError:  # a cache that cannot be written costs a load's time, and nothing else
        return None
    return path


def path_of_rank(path: Path, rank: int, ranks: int) -> Path:
    """Where one rank keeps its part of what `path` names."""
    if ranks == 1:
        return path
    return path.with_name(f"{path.stem}-{rank}of{ranks}{path.suffix}")


def prune_packed(cache: ModelCache, files_max: int = 0) -> int:
    """Remove what writers left unfinished, and all but the last used files; how many went."""
    directory = cache.root / "packed"
    removed = 0
    for unfinished in directory.glob("*.tmp"):
        removed += _remove_abandoned(unfinished)
    files = sorted(directory.glob("*.weights"), key=_used_time, reverse=True)
    for file in files[files_max:]:
        file.unlink(missing_ok=True)
        removed += 1
    return removed


def _used_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process removed it just now
        return 0.0


def _remove_abandoned(unfinished: Path) -> bool:
    """A writer's lock ends with its process."""
    try:
        descriptor = os.open(unfinished, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unfinished.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
