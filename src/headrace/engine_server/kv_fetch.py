"""Fetches KV from the engine that computed it: as shared memory on one host, else over TCP.

What cannot be fetched is computed, so every fault here is a word to count and nothing more.
"""

import contextlib
import mmap
import os
import secrets
import socket
import threading
import weakref
from dataclasses import dataclass

import msgspec

from headrace.base.clock import Clock
from headrace.engine.kv_parcel import KvParcel
from headrace.engine_server.kv_lease import PackedBlocks, is_sealed
from headrace.engine_server.kv_server import unix_address
from headrace.engine_server.kv_wire import (
    Ask,
    Channel,
    Kind,
    Offer,
    TransferFailed,
    ask_proof,
    close_all,
    decode_offer,
    decode_proven,
    encode,
    is_proof,
    nonce_bytes,
    offer_bytes_max,
    offer_proof,
)
from headrace.engine_server.messages import KvSource

connect_s_max = 2.0
refusals = (b"denied", b"fingerprint", b"gone")


class Budget:
    """Bytes of fetched KV that requests hold until they are admitted; any thread may call."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self.byte_count = 0

    def take(self, byte_count: int) -> None:
        """Count more bytes; TransferFailed("full") if they are too many."""
        with self._lock:
            if self.byte_count + byte_count > self._bytes_max:
                raise TransferFailed("full")
            self.byte_count += byte_count

    def give_back(self, byte_count: int) -> None:
        """Count fewer."""
        with self._lock:
            self.byte_count -= byte_count


@dataclass(frozen=True, slots=True)
class KvFetcher:
    """What all fetches of one engine have in common."""

    key: bytes
    fingerprint: bytes
    block_bytes: int
    budget: Budget
    clock: Clock
    timeout_s: float

    def fetch(self, source: KvSource) -> KvParcel:
        """The KV that waits there; TransferFailed says why it does not come."""
        with self._connect(source) as sock:
            return self.converse(sock, source.transfer_id)

    def converse(self, sock: socket.socket, transfer_id: str) -> KvParcel:
        """Ask over a connection; TransferFailed says why nothing came."""
        is_local = sock.family == socket.AF_UNIX
        channel = Channel(sock, self.clock, self.timeout_s)
        _, hello = channel.receive((Kind.HELLO,), nonce_bytes)
        ask = Ask(transfer_id, secrets.token_bytes(nonce_bytes), self.fingerprint, b"", is_local)
        ask = msgspec.structs.replace(ask, proof=ask_proof(self.key, hello, ask))
        channel.send(Kind.ASK, encode(ask))
        fds: list[int] = []
        try:
            kinds = (Kind.OFFER, Kind.REFUSED)
            if is_local:
                kind, body, fds = channel.receive_fd(kinds, offer_bytes_max)
            else:
                kind, body = channel.receive(kinds, offer_bytes_max)
            if kind is Kind.REFUSED:
                raise TransferFailed(body.decode() if body in refusals else "broken")
            offer = self._checked(hello, ask, body)
            return self._receive(channel, offer, fds)
        finally:
            close_all(fds)

    def _connect(self, source: KvSource) -> socket.socket:
        address = unix_address(source.engine_id)
        if address is not None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(connect_s_max)
                sock.connect(address)
            except OSError:
                sock.close()
            else:
                return sock
        if not source.host:
            raise TransferFailed("unreachable")
        try:
            return socket.create_connection((source.host, source.port), connect_s_max)
        except OSError as error:
            raise TransferFailed("unreachable") from error

    def _checked(self, hello: bytes, ask: Ask, body: bytes) -> Offer:
        """The offer, if it is the giver's word and of this engine's kind of blocks."""
        try:
            proven = decode_proven(body)
            if not is_proof(proven.proof, offer_proof(self.key, hello, ask, proven.offer)):
                raise TransferFailed("denied")
            offer = decode_offer(proven.offer)
        except ValueError as error:
            raise TransferFailed("broken") from error
        if offer.block_bytes != self.block_bytes or not offer.names:
            raise TransferFailed("layout")
        return offer

    def _receive(self, channel: Channel, offer: Offer, fds: list[int]) -> KvParcel:
        size = offer.byte_count
        self.budget.take(size)
        try:
            buffer = self._mapped(fds, size) if offer.by_segment else self._read(channel, size)
            blocks = PackedBlocks(buffer, offer.block_bytes)
        except BaseException:
            self.budget.give_back(size)
            raise
        weakref.finalize(blocks, self.budget.give_back, size)
        return KvParcel(
            offer.fingerprint, offer.names, offer.token_count, offer.cached_tokens, blocks
        )

    @staticmethod
    def _mapped(fds: list[int], size: int) -> mmap.mmap:
        """A segment that came, which its giver cannot change any more."""
        if len(fds) != 1 or not is_sealed(fds[0]) or os.fstat(fds[0]).st_size != size:
            raise TransferFailed("broken")
        with contextlib.suppress(OSError):
            return mmap.mmap(fds[0], size, prot=mmap.PROT_READ)
        raise TransferFailed("full")

    @staticmethod
    def _read(channel: Channel, size: int) -> bytearray:
        buffer = bytearray(size)
        with memoryview(buffer) as view:
            channel.receive_into(view)
        return buffer
