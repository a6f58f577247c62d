"""Where two SGLang engines meet that share a request: pure.

Both get the same request at once, with the address of the one that computes prompts and a room
that nobody else is in. That one waits there with the prompt's KV, and the other fetches it.
"""

from urllib.parse import urlsplit

from headrace.adapters.kv_messages import kv_events_port

meeting_offset = 20_000  # of the port above the engine's own, where its launcher gives none
rooms = 1 << 62  # a request of several prompts takes as many rooms in a row
nobodys_host = "2.2.2.2"  # SGLang's own word for a transfer that is none, as in its warm-up


def meeting_port(port: int, given: int) -> int:
    """Where an engine of this port waits: as its launcher gave it, or by the offset."""
    return given or kv_events_port(port, meeting_offset) or port


def meeting_fields(address: str, given_port: int, room: int) -> dict[str, object]:
    """What both are told, by the address of the one that computes prompts."""
    assert 0 <= room < rooms
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {
        "bootstrap_host": parts.hostname or "",
        "bootstrap_port": meeting_port(port, given_port),
        "bootstrap_room": room,
    }


def alone_fields() -> dict[str, object]:
    """What one is told that is asked alone, to see whether it answers: it moves no KV."""
    return {"bootstrap_host": nobodys_host, "bootstrap_room": 0}
