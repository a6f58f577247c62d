"""The options of `serve` by which engines hand prompts' KV to each other."""

from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError
from headrace.engine_server.messages import KvTransfers

lease_default_s = 30.0

KvTransfer = Annotated[
    bool,
    typer.Option(
        "--kv-transfer",
        help="Hand the KV of prompts to other engines of the same model, and take theirs, where a "
        "trusted caller asks for it; HEADRACE_PREFIX_KEY must be the same for all of them.",
    ),
]
KvTransferPort = Annotated[
    int,
    typer.Option(
        min=0, max=65_535, help="The port where other hosts' engines fetch KV; 0 takes a free one."
    ),
]
KvLease = Annotated[
    float,
    typer.Option(
        "--kv-lease", min=0.1, max=3600.0, help="How long KV waits to be fetched, at most (s)."
    ),
]


def kv_transfers(
    host: str, port: int, lease_s: float, *, is_on: bool, prefix_key: bytes | None
) -> KvTransfers | None:
    """What the engine is to do; ConfigurationError without the key that engines share."""
    if not is_on:
        return None
    if prefix_key is None:
        raise ConfigurationError(
            "--kv-transfer needs the key that its engines share: give all of them the same "
            "HEADRACE_PREFIX_KEY, 16 to 64 bytes in hexadecimal."
        )
    return KvTransfers(host, port, lease_s)
