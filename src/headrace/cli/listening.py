"""The socket that a command serves on: bound here, or inherited from a supervisor.

A supervisor binds before it starts anything, so that a taken port is known at once, and keeps the
socket, so that callers wait in its backlog instead of being refused while a server starts again.
"""

import socket
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError
from headrace.http import server

ListenDescriptor = Annotated[
    int | None,
    typer.Option("--listen-fd", hidden=True, help="A listening socket to serve on, inherited."),
]


def listener(host: str, port: int, descriptor: int | None) -> socket.socket:
    """The inherited socket, or one that is bound to `host` and `port`."""
    if descriptor is None:
        return server.bind(host, port)
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigurationError(f"--listen-fd {descriptor}: {error.strerror}.") from None
    sock.setblocking(False)
    return sock
