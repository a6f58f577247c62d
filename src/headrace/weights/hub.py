"""What Hugging Face says of files: where they really are, and which digests they must have."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

import huggingface_hub
import msgspec
from huggingface_hub import constants

from headrace.base.errors import SourceError
from headrace.weights.download import probe, read_whole
from headrace.weights.reference import HubRepository, HubSource, digest_pattern, is_inner_path

listing_bytes_max = 32 << 20
files_max = 10_000
commit_pattern = re.compile(r"[0-9a-f]{7,64}")
git_digest_pattern = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """What to fetch, with the credentials it needs."""

    url: str
    headers: Mapping[str, str]
    sha256: str | None  # of files in large-file storage, which model files are


def hub_file(source: HubSource) -> HubFile:
    """Ask the hub (HF_ENDPOINT, HF_TOKEN from the environment) for a file; SourceError if refused.

    Cost: one HEAD request. The URL is fixed to the revision's commit as of now."""
    headers = _credentials()
    url = huggingface_hub.hf_hub_url(source.repository, source.file, revision=source.revision)
    answer = probe(url, headers)
    digest = answer.get("X-Linked-Etag", "").strip('"')
    commit = answer.get("X-Repo-Commit", "")
    if commit:
        url = huggingface_hub.hf_hub_url(source.repository, source.file, revision=commit)
    return HubFile(url, headers, digest if digest_pattern.fullmatch(digest) else None)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a repository; one of the two digests is known."""

    size_bytes: int | None
    sha256: str | None  # of files in large-file storage
    git_digest: str | None  # of the others


@dataclass(frozen=True, slots=True)
class HubListing:
    """A repository's files at one commit."""

    repository: str
    commit: str
    files: Mapping[str, ListedFile]


class _LargeFile(msgspec.Struct):
    sha256: str = ""


class _Sibling(msgspec.Struct, rename={"blob_id": "blobId"}):
    rfilename: str
    size: int | None = None
    blob_id: str | None = None
    lfs: _LargeFile | None = None


class _Answer(msgspec.Struct):
    sha: str
    siblings: list[_Sibling]


def hub_listing(source: HubRepository) -> HubListing:
    """Every file of a repository's revision; SourceError if the hub refuses. Cost: one request."""
    revision = quote(source.revision, safe="")
    endpoint = constants.ENDPOINT
    url = f"{endpoint}/api/models/{source.repository}/revision/{revision}?blobs=true"
    data = read_whole(url, _credentials(), listing_bytes_max)
    try:
        answer = msgspec.json.decode(data, type=_Answer)
    except msgspec.DecodeError as error:
        raise SourceError(
            f"{endpoint}: its list of {source.repository}'s files is not understood ({error}); "
            "check HF_ENDPOINT."
        ) from error
    if not commit_pattern.fullmatch(answer.sha) or len(answer.siblings) > files_max:
        raise SourceError(
            f"{endpoint}: {source.repository} has {len(answer.siblings)} files at {answer.sha!r}; "
            f"at most {files_max} at one commit are read."
        )
    files = {file.rfilename: _listed(file) for file in answer.siblings if _is_named_well(file)}
    return HubListing(source.repository, answer.sha, files)


def _is_named_well(file: _Sibling) -> bool:
    return is_inner_path(file.rfilename) and "\0" not in file.rfilename


def _listed(file: _Sibling) -> ListedFile:
    large = file.lfs.sha256 if file.lfs is not None else ""
    sha256 = large if digest_pattern.fullmatch(large) else None
    git = file.blob_id or ""
    known = sha256 is None and git_digest_pattern.fullmatch(git)
    return ListedFile(file.size, sha256, git if known else None)


def _credentials() -> dict[str, str]:
    token = huggingface_hub.get_token()
    return {} if token is None else {"Authorization": f"Bearer {token}"}
