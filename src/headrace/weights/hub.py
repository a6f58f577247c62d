"""Where a file on Hugging Face really is, and the digest that the hub itself states for it."""

from collections.abc import Mapping
from dataclasses import dataclass

import huggingface_hub

from headrace.weights.download import probe
from headrace.weights.reference import HubSource, digest_pattern


@dataclass(frozen=True, slots=True)
class HubFile:
    """What to fetch, with the credentials it needs."""

    url: str
    headers: Mapping[str, str]
    sha256: str | None  # of files in large-file storage, which model files are


def hub_file(source: HubSource) -> HubFile:
    """Ask the hub (HF_ENDPOINT, HF_TOKEN from the environment) for a file; SourceError if refused.

    Cost: one HEAD request. The URL is fixed to the revision's commit as of now."""
    token = huggingface_hub.get_token()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = huggingface_hub.hf_hub_url(source.repository, source.file, revision=source.revision)
    answer = probe(url, headers)
    digest = answer.get("X-Linked-Etag", "").strip('"')
    commit = answer.get("X-Repo-Commit", "")
    if commit:
        url = huggingface_hub.hf_hub_url(source.repository, source.file, revision=commit)
    return HubFile(url, headers, digest if digest_pattern.fullmatch(digest) else None)
