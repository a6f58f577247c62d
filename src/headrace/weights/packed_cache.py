"""Where packed weights lie between two loads: in the model cache, by the model's digest.

    <root>/packed/<digest>-<layout>.weights   mapped by every engine of that model and layout
    <root>/packed/<digest>-<layout>-<rank>of<ranks>.weights   a part, where ranks share the model
    <root>/packed/*.tmp                       being written, while its writer holds a lock on it

The file is written by the first load (csrc/model/packed_file.hpp). It can be lost at any time: the
next load makes it again, and a process that has it mapped keeps it, and holds a lock that says so.
Damage is found beside the steps (engine_server/weights_check.py).
"""

import shutil
from contextlib import suppress
from pathlib import Path

from headrace.weights.cache import ModelCache
from headrace.weights.file_use import mark_used, remove_unless_used, used_time_s

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
            mark_used(part)
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


def remove_packed(path: Path, ranks: int = 1) -> None:
    """Remove what `path` names, or the parts of its ranks; who has it mapped keeps it."""
    for rank in range(ranks):
        with suppress(OSError):  # not there, or not ours: the next load says what it cannot do
            path_of_rank(path, rank, ranks).unlink()


def prune_packed(cache: ModelCache, files_max: int) -> int:
    """Remove what writers left unfinished, and all but the last used files; how many went.

    What a process has mapped stays."""
    directory = cache.root / "packed"
    files = sorted(directory.glob("*.weights"), key=used_time_s, reverse=True)
    goners = [*directory.glob("*.tmp"), *files[files_max:]]
    return sum(remove_unless_used([file]) for file in goners)
