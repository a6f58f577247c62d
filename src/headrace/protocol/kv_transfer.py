"""Prefill on one replica, decode on another: the fields that say so, by vLLM's names.

    to the first    do_remote_decode                    its answer has `kv_transfer_params`, too
    to the second   what the first one answered         do_remote_prefill, and where the KV waits

They choose an address that an engine connects to, so only trusted callers may send them.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

id_pattern = r"^[0-9a-f]{32}$"
host_length_max = 255
blocks_max = 1_000_000
Port = Annotated[int, Meta(ge=1, le=65_535)]
Id = Annotated[str, Meta(pattern=id_pattern)]


class KvTransferParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one of two replicas is asked, or answers."""

    do_remote_decode: bool = False  # compute the prompt, and let its KV wait for another
    do_remote_prefill: bool = False  # the prompt's KV waits at another
    remote_engine_id: Id | None = None
    remote_block_ids: Annotated[list[int], Meta(max_length=blocks_max)] | None = None  # for people
    remote_host: Annotated[str, Meta(max_length=host_length_max)] | None = None
    remote_port: Port | None = None
    transfer_id: Id | None = None  # under which the KV waits; vLLM knows it by its blocks
