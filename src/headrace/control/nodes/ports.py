"""Free ports of a node for its replicas, and the address by which others reach it."""

import socket
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

free_ports = 16  # told at once


class PortFinder:
    """Free ports of one address, of a range or of the system's choice."""

    def __init__(self, host: str, first: int = 0, last: int = 0) -> None:
        """Without a range the system chooses."""
        self._host = host
        self._range = deque(range(first, last + 1)) if first else None

    def __call__(self) -> Sequence[int]:
        """Some that are free now; those of a range in turn."""
        free: list[int] = []
        if self._range is not None:
            for _ in range(len(self._range)):
                port = self._range[0]
                self._range.rotate(-1)
                if is_free(self._host, port):
                    free.append(port)
                if len(free) == free_ports:
                    break
            return free
        with ExitStack() as stack:  # all open at once, so that each is another
            for _ in range(free_ports):
                sock = stack.enter_context(socket.socket(family_of(self._host)))
                sock.bind((self._host, 0))
                free.append(int(sock.getsockname()[1]))
        return free


def family_of(host: str) -> socket.AddressFamily:
    """The kind of socket for an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_free(host: str, port: int) -> bool:
    """Whether a port can be listened on now."""
    with socket.socket(family_of(host)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to another, without sending anything to it."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.connect(address)
        return str(sock.getsockname()[0])
