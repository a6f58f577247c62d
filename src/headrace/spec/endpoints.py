"""The gateway's endpoints by the names that a key's allow-list uses.

An endpoint is a path below /v1 with everything under it: `chat` is /v1/chat and so
/v1/chat/completions. A path that belongs to no name here is open to no key that has a list.
"""

from collections.abc import Mapping

path_prefix = "/v1/"
endpoint_of_segment: Mapping[str, str] = {  # the first segment below /v1
    "audio": "audio",
    "batches": "batches",
    "chat": "chat",
    "completions": "completions",
    "detokenize": "tokenize",
    "embeddings": "embeddings",
    "files": "files",
    "images": "images",
    "messages": "messages",
    "models": "models",
    "rerank": "rerank",
    "responses": "responses",
    "score": "score",
    "tokenize": "tokenize",
}
endpoint_names = tuple(sorted(set(endpoint_of_segment.values())))


def endpoint_of(path: str) -> str | None:
    """The endpoint that a request's path belongs to, or None."""
    if not path.startswith(path_prefix):
        return None
    return endpoint_of_segment.get(path[len(path_prefix) :].split("/", 1)[0])
