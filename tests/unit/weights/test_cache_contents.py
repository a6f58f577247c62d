"""What the cache lists, what a policy gives up, and what is never removed."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from headrace.weights.cache import ModelCache, check_prefix, key_of
from headrace.weights.cache_contents import (
    CacheItem,
    ItemKind,
    PrunePolicy,
    cache_items,
    chosen,
    remove,
)
from headrace.weights.quantized_copy import quantizer_version

layout = "pairs-1"


def digest(number: int) -> str:
    return f"{number:064x}"


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path)


def blob(cache: ModelCache, number: int, size: int, used_at: float, **origin: int) -> Path:
    """A model file in the cache, remembered under a reference unless it is a member of others."""
    path = cache.root / "blobs" / "sha256" / digest(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (used_at, 1.0))
    cache.remember(key_of(f"model{number}"), f"model{number}", digest(number), **origin)
    return path


def packed(cache: ModelCache, number: int, used_at: float, kernels: str = layout) -> Path:
    path = cache.root / "packed" / f"{digest(number)}-{kernels}.weights"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"packed")
    os.utime(path, (used_at, 1.0))
    return path


def names(items: list[CacheItem]) -> list[tuple[str, str]]:
    return [(item.kind.value, item.name) for item in items]


def pruned(cache: ModelCache, policy: PrunePolicy, now_s: float = 1000.0) -> list[CacheItem]:
    goners = chosen(cache_items(cache, layout), policy, now_s)
    return [item for item in goners if remove(cache, item)]


def test_everything_is_listed_by_what_led_to_it_the_last_used_first(cache: ModelCache) -> None:
    blob(cache, 1, 100, used_at=10)
    blob(cache, 2, 200, used_at=30, quantizer=quantizer_version)
    packed(cache, 1, used_at=20)
    cache.partial_path("a" * 64).write_bytes(b"half")
    for key in ("0" * 64, "f" * 64):  # whichever is read first
        cache.remember(key, f"{check_prefix}/some/path", digest(1))
        cache.remember(f"{key[1:]}e", "/some/path", digest(1))
    items = cache_items(cache, layout)
    assert names(items[1:]) == [("copy", "model2"), ("packed", "model1"), ("model", "model1")]
    assert items[0].kind is ItemKind.UNFINISHED
    assert [item.size_bytes for item in items] == [4, 200, 6, 100]
    assert not any(item.is_stale or item.is_in_use for item in items)


def test_without_a_bound_only_what_nothing_can_find_goes(cache: ModelCache) -> None:
    kept = [blob(cache, 1, 10, 1), packed(cache, 1, 1), blob(cache, 2, 10, 1, quantizer=1)]
    stale = [
        blob(cache, 3, 10, 1, quantizer=quantizer_version - 1),
        packed(cache, 1, 1, kernels="pairs-0"),
        packed(cache, 1, 1, kernels="fours-1"),
    ]
    assert len(pruned(cache, PrunePolicy())) == len(stale)
    assert [path.exists() for path in kept + stale] == [True] * 3 + [False] * 3
    assert cache.find(key_of("model3")) is None


def test_what_was_not_used_for_as_long_goes(cache: ModelCache) -> None:
    old, new = blob(cache, 1, 10, used_at=100), blob(cache, 2, 10, used_at=900)
    assert names(pruned(cache, PrunePolicy(unused_s_min=500.0))) == [("model", "model1")]
    assert [old.exists(), new.exists()] == [False, True]


def test_those_unused_for_longest_go_until_the_rest_fits(cache: ModelCache) -> None:
    for number, used_at in ((1, 30), (2, 10), (3, 20)):
        blob(cache, number, 100, used_at)
    gone = pruned(cache, PrunePolicy(size_bytes_max=150))
    assert names(gone) == [("model", "model2"), ("model", "model3")]


def test_kinds_that_were_not_named_stay_and_count(cache: ModelCache) -> None:
    model, weights = blob(cache, 1, 100, 1), packed(cache, 1, 1)
    pruned(cache, PrunePolicy(kinds=frozenset({ItemKind.PACKED}), size_bytes_max=0))
    assert [model.exists(), weights.exists()] == [True, False]


def test_what_a_process_uses_stays_and_others_go_in_its_place(cache: ModelCache) -> None:
    held, other = blob(cache, 1, 100, used_at=1), blob(cache, 2, 100, used_at=2)
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert cache_items(cache, layout)[1].is_in_use
        pruned(cache, PrunePolicy(size_bytes_max=100))
        assert [held.exists(), other.exists()] == [True, False]


def test_a_process_that_takes_a_model_after_the_choice_keeps_it(cache: ModelCache) -> None:
    path = blob(cache, 1, 100, used_at=1)
    [item] = chosen(cache_items(cache, layout), PrunePolicy(size_bytes_max=0), 1000.0)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not remove(cache, item)
    assert path.exists()
    assert remove(cache, item)


def test_what_is_being_fetched_stays(cache: ModelCache) -> None:
    key = "b" * 64
    partial = cache.partial_path(key)
    partial.write_bytes(b"half")
    everything = PrunePolicy(size_bytes_max=0)
    with cache.lock(key):
        assert pruned(cache, everything) == []
    assert names(pruned(cache, everything)) == [("unfinished", key)]
    assert not partial.exists()


def directory(cache: ModelCache, number: int, members: list[Path], used_at: float) -> Path:
    path = cache.directory_path(digest(number))
    path.mkdir()
    for index, member in enumerate(members):
        (path / str(index)).symlink_to(os.path.relpath(member, path))
    os.utime(path, (used_at, used_at))
    cache.remember(key_of(f"model{number}"), f"model{number}", digest(number))
    return path


def test_files_that_two_models_share_go_with_the_second(cache: ModelCache) -> None:
    own, shared, others = (blob(cache, number, 100, 1) for number in (1, 2, 3))
    first = directory(cache, 11, [own, shared], used_at=1)
    second = directory(cache, 12, [shared, others], used_at=2)
    assert names(cache_items(cache, layout)) == [("model", "model12"), ("model", "model11")]
    assert names(pruned(cache, PrunePolicy(unused_s_min=999.0))) == [("model", "model11")]
    assert [path.exists() for path in (first, own, shared, others)] == [False, False, True, True]
    pruned(cache, PrunePolicy(size_bytes_max=0))
    assert not any(path.exists() for path in (second, shared, others))


def test_an_adapter_is_one_item_by_the_name_of_its_files(cache: ModelCache) -> None:
    config, weights = blob(cache, 1, 10, used_at=5), blob(cache, 2, 100, used_at=7)
    path = cache.root / "adapters" / digest(20)
    path.mkdir(parents=True)
    for name, member in (("adapter_config.json", config), ("adapter_model.safetensors", weights)):
        (path / name).symlink_to(member)
    os.utime(path, (1.0, 1.0))
    [item] = cache_items(cache, layout)
    assert (item.kind, item.name, item.size_bytes) == (ItemKind.ADAPTER, "model2", 110)
    with weights.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert pruned(cache, PrunePolicy(size_bytes_max=0)) == []
    assert len(pruned(cache, PrunePolicy(size_bytes_max=0))) == 1
    assert not any(gone.exists() for gone in (path, config, weights))
    assert cache.find(key_of("model2")) is None


def test_a_broken_record_and_an_empty_cache_are_no_hindrance(cache: ModelCache) -> None:
    assert cache_items(cache, layout) == []
    path = blob(cache, 1, 100, used_at=1)
    for number, text in enumerate(("", "[]", json.dumps({"sha256": 3}))):
        (cache.root / "index" / f"{number}.json").write_text(text)
    assert [item.paths for item in cache_items(cache, layout)] == [(path,)]
