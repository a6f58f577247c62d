"""Gives KV that waits under a lease to engines that can prove the platform's key.

It listens on TCP, and on Linux on an abstract Unix socket too, which has no file that could be left
behind and which only processes of the same user get an answer from. A connection is one transfer.
"""

import contextlib
import os
import secrets
import socket
import struct
import sys
import threading
from collections import Counter

from headrace.base.clock import Clock
from headrace.engine_server.kv_lease import Lease, LeaseStore
from headrace.engine_server.kv_wire import (
    Ask,
    Channel,
    Kind,
    Offer,
    ProvenOffer,
    TransferFailed,
    ask_bytes_max,
    ask_proof,
    data_bytes_max,
    decode_ask,
    encode,
    is_proof,
    nonce_bytes,
    offer_proof,
)

connections_max = 16  # transfers at once; another one waits to be accepted
conversation_s_max = 60.0
expiry_check_s = 1.0
peer_credentials = struct.Struct("3i")  # process, user, group


def unix_address(engine_id: str) -> str | None:
    """The abstract name of an engine's socket; None where there are no such names."""
    return f"\0headrace-kv-{engine_id}" if sys.platform == "linux" else None


class KvServer:
    """Serves one lease store; its threads end with the process, or after `close`."""

    def __init__(
        self,
        store: LeaseStore,
        key: bytes,
        fingerprint: bytes,
        clock: Clock,
        *,
        host: str,
        port: int,
    ) -> None:
        """Listens from now on; OSError if the port is taken."""
        self.engine_id = secrets.token_hex(16)
        self.results: Counter[str] = Counter()  # of conversations
        self._store = store
        self._key = key
        self._fingerprint = fingerprint
        self._clock = clock
        self._slots = threading.Semaphore(connections_max)
        self._closed = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        tcp = socket.create_server((host, port), family=family)
        self.port: int = tcp.getsockname()[1]
        self._listeners = [tcp]
        address = unix_address(self.engine_id)
        if address is not None:
            local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            local.bind(address)
            local.listen()
            self._listeners.append(local)

    def start(self) -> None:
        """Begin to answer, and to free what nobody fetches."""
        for listener in self._listeners:
            name = "kv-" + ("unix" if listener.family == socket.AF_UNIX else "tcp")
            threading.Thread(target=self._accept, args=(listener,), name=name, daemon=True).start()
        threading.Thread(target=self._expire, name="kv-leases", daemon=True).start()

    def close(self) -> None:
        """Listen no more, and free what waits."""
        self._closed.set()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._store.close()

    def _expire(self) -> None:
        while not self._closed.wait(expiry_check_s):
            self._store.expire()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closed.is_set():
            self._slots.acquire()
            try:
                sock, _ = listener.accept()
            except OSError:  # closed, or out of file descriptors
                self._slots.release()
                if self._closed.wait(0.05):
                    return
                continue
            threading.Thread(target=self._serve, args=(sock,), name="kv-give", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                result = self.converse(sock)
            except TransferFailed as failure:
                result = failure.result
            finally:
                self._slots.release()
        self.results[result] += 1

    def converse(self, sock: socket.socket) -> str:
        """Answer one connection: `given`, or why not. TransferFailed if it breaks off."""
        is_local = sock.family == socket.AF_UNIX
        if is_local and not _is_same_user(sock):
            return "denied"
        channel = Channel(sock, self._clock, conversation_s_max)
        hello = secrets.token_bytes(nonce_bytes)
        channel.send(Kind.HELLO, hello)
        _, body = channel.receive((Kind.ASK,), ask_bytes_max)
        try:
            ask = decode_ask(body)
        except ValueError:
            return "denied"
        if not is_proof(ask.proof, ask_proof(self._key, hello, ask)):
            channel.send(Kind.REFUSED, b"denied")
            return "denied"
        if ask.fingerprint != self._fingerprint:
            channel.send(Kind.REFUSED, b"fingerprint")
            return "fingerprint"
        with self._store.take(ask.transfer_id) as lease:
            if lease is None:
                channel.send(Kind.REFUSED, b"gone")
                return "gone"
            self._give(channel, hello, ask, lease, by_segment=is_local and ask.by_segment)
        return "given"

    def _give(
        self, channel: Channel, hello: bytes, ask: Ask, lease: Lease, *, by_segment: bool
    ) -> None:
        parcel, segment = lease.parcel, lease.segment
        offer = encode(
            Offer(
                parcel.fingerprint,
                parcel.names,
                parcel.token_count,
                parcel.cached_tokens,
                lease.block_bytes,
                by_segment,
            )
        )
        proven = encode(ProvenOffer(offer, offer_proof(self._key, hello, ask, offer)))
        channel.send(Kind.OFFER, proven, segment.fd if by_segment else None)
        if by_segment:
            return
        with segment.view() as data, memoryview(data) as view:
            for start in range(0, len(view), data_bytes_max):
                with view[start : start + data_bytes_max] as part:
                    channel.send(Kind.DATA, part)


def _is_same_user(sock: socket.socket) -> bool:
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, peer_credentials.size)
    _, user, _ = peer_credentials.unpack(data)
    return bool(user == os.getuid())
