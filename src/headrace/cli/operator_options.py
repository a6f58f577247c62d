"""The operator's own listener of `headrace serve`: where it listens, and its key."""

import os
import secrets
import socket
from dataclasses import dataclass
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError
from headrace.cli.output import note
from headrace.http import server

key_variable = "HEADRACE_OPERATOR_KEY"
key_bytes = 24

AdminPort = Annotated[
    int | None,
    typer.Option(
        help="Also listen here for the operator: sleep, pause, adapters, the prefix cache; 0 takes "
        f"a free port. Its key is in {key_variable}, or made up and printed once."
    ),
]
AdminHost = Annotated[str, typer.Option(help="The operator's address to listen on.")]


@dataclass(frozen=True, slots=True)
class OperatorListener:
    """Where the operator is listened to, and what it must send."""

    sock: socket.socket
    key: str


def operator_listener(host: str, port: int | None) -> OperatorListener | None:
    """The listener, bound; None if none is asked for."""
    if port is None:
        return None
    key = os.environ.get(key_variable)
    if key is not None and (not key.strip() or not key.isascii()):
        raise ConfigurationError(
            f"{key_variable} must be a key of ASCII characters, or not be set."
        )
    if key is None and not server.is_loopback(host):
        raise ConfigurationError(
            f"Refusing to listen for the operator on {host} without a key of yours: set "
            f"{key_variable}."
        )
    sock = server.bind(host, port)
    address, bound_port = server.address_of(sock)
    shown = f"[{address}]" if ":" in address else address
    note(f"The operator is listened to at http://{shown}:{bound_port}")
    if key is None:
        key = secrets.token_urlsafe(key_bytes)
        note(f"The operator's key, until this server ends: {key}")
    return OperatorListener(sock, key.strip())
