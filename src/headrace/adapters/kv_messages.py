"""Messages about prefix caches as vLLM and SGLang publish them by ZeroMQ; bytes to values.

    frames   topic | sequence number, 8 bytes, big-endian | payload
    payload  msgpack [time, [event, ...], data-parallel rank]
    event    ["BlockStored", block hashes, parent hash, token ids, block size, LoRA id, ...]
             ["BlockRemoved", block hashes, ...]   ["AllBlocksCleared"]

Hashes are integers or bytes, by version; later versions add fields at the end, which are let be.
vLLM of 2026 writes maps by the fields' names instead, an event's kind under `type`.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.adapters.protocol import LaunchRequest
from headrace.base.errors import UpstreamFailed

ForeignHash = int | bytes


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that can be found now, the first after `parent`."""

    hashes: tuple[ForeignHash, ...]
    parent: ForeignHash | None
    token_ids: tuple[int, ...]
    block_size_tokens: int
    has_adapter: bool


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that can be found no more."""

    hashes: tuple[ForeignHash, ...]


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """All of them."""


KvMessage = BlocksStored | BlocksRemoved | BlocksCleared

# What is read of each kind, in the order in which it stands where fields have no names.
field_names = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"),
    "BlockRemoved": ("block_hashes",),
}


def kv_events_port(port: int, offset: int) -> int | None:
    """Where an engine of this port publishes: above it, or below where there is no room above.

    None without an offset."""
    if not offset:
        return None
    return port + offset if port + offset < 1 << 16 else port - offset


def publisher_config(request: LaunchRequest) -> str | None:
    """What an engine is told, so that it publishes; None: it shall not, or cannot there."""
    host = bound_host(request.host)
    if request.kv_events_port is None or host is None:
        return None
    told = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://{host}:{request.kv_events_port}",
    }
    return msgspec.json.encode(told).decode()


def bound_host(host: str) -> str | None:
    """A host as both engines must be given it to listen there; None for one of IPv6, to which
    their sockets cannot be bound: such an engine would not start.

    They connect to an address unless `*` or `::` is in it, so that of IPv4 is written as one of
    IPv6, which is the same one to ZeroMQ; a name but `localhost` becomes all addresses."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return "*"
    if address.is_unspecified:
        return "*"
    return None if address.version == 6 else f"[::ffff:{address}]"


def sequence_of(frame: bytes) -> int:
    """The sequence number of a message. UpstreamFailed if that is not one."""
    if len(frame) != 8:
        raise UpstreamFailed("a KV event's sequence number has 8 bytes")
    return int.from_bytes(frame, "big", signed=True)


def decode_events(payload: bytes) -> list[KvMessage]:
    """The events of one message; kinds that are not known are left out.

    UpstreamFailed for what is not such a message."""
    try:
        batch = msgspec.msgpack.decode(payload)
        events = batch["events"] if isinstance(batch, dict) else batch[1]
        found = [_event(_in_order(event)) for event in events]
    except (msgspec.DecodeError, ValueError, TypeError, LookupError) as error:
        raise UpstreamFailed(f"an engine's KV events are not as documented ({error})") from None
    return [event for event in found if event is not None]


def _in_order(event: Any) -> Sequence[Any]:
    """An event's kind and fields, whether they have names or not."""
    if not isinstance(event, dict):
        fields: Sequence[Any] = event
        return fields
    kind = event["type"]
    return (kind, *(event.get(name) for name in field_names.get(kind, ())))


def _event(fields: Sequence[Any]) -> KvMessage | None:
    match fields[0]:
        case "BlockStored":
            adapter = fields[5] if len(fields) > 5 else None
            return BlocksStored(
                tuple(fields[1]), fields[2], tuple(fields[3]), int(fields[4]), adapter is not None
            )
        case "BlockRemoved":
            return BlocksRemoved(tuple(fields[1]))
        case "AllBlocksCleared":
            return BlocksCleared()
    return None
