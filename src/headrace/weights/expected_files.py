"""What a model version says of its files, against those that are here: each by its name.

A version that was never read says nothing of them. What differs is refused with the file's name,
so that whoever looks after a source or a cache knows which file to look at.
"""

from collections.abc import Iterable, Mapping, Sequence

from headrace.base.errors import DigestMismatch, SourceError
from headrace.spec.models import VersionFile

advice = "Bring it back, or make a new version for a changed model."


def digests_of(files: Iterable[VersionFile]) -> dict[str, str]:
    """SHA-256 by the file's name."""
    return {file.name: file.sha256 for file in files}


def is_made_of(files: Iterable[VersionFile], expected: Sequence[VersionFile]) -> bool:
    """Whether these are the files that are expected; so is anything where none are known."""
    return not expected or digests_of(files) == digests_of(expected)


def check_files(
    place: str, files: Iterable[VersionFile], expected: Sequence[VersionFile], done: str
) -> None:
    """DigestMismatch names the first file at `place` that is another one than the version's, and
    says what was `done`; SourceError one that is missing, or that the version does not have."""
    if expected:
        check_digests(place, digests_of(files), digests_of(expected), done)


def check_digests(
    place: str, found: Mapping[str, str | None], wanted: Mapping[str, str], done: str
) -> None:
    """The same for digests by name; None: nobody knows that one yet."""
    for name, sha256 in sorted(wanted.items()):
        if name not in found:
            raise SourceError(f"{place}: {name} is missing, which the model version has. {advice}")
        actual = found[name]
        if actual not in (None, sha256):
            raise DigestMismatch(
                f"{place}: the SHA-256 of {name} is {actual}, the model version says {sha256}. "
                f"{done} {advice}",
                expected_sha256=sha256,
                actual_sha256=actual,
            )
    for name in sorted(found):
        if name not in wanted:
            raise SourceError(f"{place}: the model version has no {name}. {advice}")
