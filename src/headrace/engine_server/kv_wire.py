"""The conversation in which one engine gets KV from another: framed, checked, both sides proven.

    giver   HELLO   a nonce
    taker   ASK     transfer id, a nonce, its fingerprint, proof of the key over all of them
    giver   OFFER   what the KV is, its size, proof of the key over that; or REFUSED, why not
    giver   DATA    1 MiB each until all is there; none over a Unix socket, where the segment's file
                    descriptor goes with the offer

A frame is magic, kind, length and the CRC-32 of its body, then the body. Proofs are keyed BLAKE2b,
so that who lacks the key gets no KV and can give none. Data is checked against accidents, not
sealed against who can rewrite packets, and not encrypted: replicas talk over a private network.
"""

import os
import socket
import struct
import zlib
from enum import IntEnum
from hashlib import blake2b
from hmac import compare_digest

import msgspec

from headrace.base.clock import Clock

magic = b"hrkt"
head = struct.Struct(">4sBII")  # magic, kind, length, CRC-32
nonce_bytes = 32
proof_bytes = 32
data_bytes_max = 1024 * 1024  # of one frame
ask_bytes_max = 1024
offer_bytes_max = 16 * 1024 * 1024  # a name of 16 bytes for each block of a million-token prompt


class TransferFailed(Exception):
    """KV did not come; `result` says why in one word."""

    def __init__(self, result: str) -> None:
        super().__init__(result)
        self.result = result


class Kind(IntEnum):
    """What a frame carries."""

    HELLO = 1
    ASK = 2
    OFFER = 3
    DATA = 4
    REFUSED = 5


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """What the taker wants."""

    transfer_id: str
    nonce: bytes
    fingerprint: bytes
    proof: bytes
    by_segment: bool


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """What the giver has."""

    fingerprint: bytes
    names: tuple[bytes, ...]
    token_count: int
    cached_tokens: int
    block_bytes: int
    by_segment: bool

    @property
    def byte_count(self) -> int:
        """Of all blocks."""
        return len(self.names) * self.block_bytes


class ProvenOffer(msgspec.Struct, frozen=True, array_like=True):
    """An offer with its proof."""

    offer: bytes  # encoded
    proof: bytes


encode = msgspec.msgpack.Encoder().encode
decode_ask = msgspec.msgpack.Decoder(Ask).decode
decode_offer = msgspec.msgpack.Decoder(Offer).decode
decode_proven = msgspec.msgpack.Decoder(ProvenOffer).decode


def transfer_key(prefix_key: bytes) -> bytes:
    """What engines of one platform prove to each other, from the secret that they share."""
    return blake2b(key=prefix_key, person=b"headrace kv move").digest()


def ask_proof(key: bytes, hello: bytes, ask: Ask) -> bytes:
    """The taker's: it has the key, and wants this transfer in this conversation."""
    parts = (hello, ask.nonce, ask.fingerprint, ask.transfer_id.encode())
    return _proof(key, b"headrace kv ask", parts)


def offer_proof(key: bytes, hello: bytes, ask: Ask, offer: bytes) -> bytes:
    """The giver's: it has the key, and this is its answer in this conversation."""
    return _proof(key, b"headrace kv give", (hello, ask.nonce, ask.transfer_id.encode(), offer))


def is_proof(given: bytes, wanted: bytes) -> bool:
    """Whether a proof is right, in constant time."""
    return compare_digest(given, wanted)


def _proof(key: bytes, purpose: bytes, parts: tuple[bytes, ...]) -> bytes:
    digest = blake2b(key=key, digest_size=proof_bytes, person=purpose)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


class Channel:
    """Frames over a connected socket until a deadline; TransferFailed("broken") at any fault."""

    def __init__(self, sock: socket.socket, clock: Clock, timeout_s: float) -> None:
        self.sock = sock
        self._clock = clock
        self._deadline_s = clock.monotonic_s() + timeout_s

    def send(self, kind: Kind, body: bytes | memoryview, fd: int | None = None) -> None:
        """Send one frame; a file descriptor goes along with its first byte."""
        header = head.pack(magic, kind, len(body), zlib.crc32(body))
        try:
            self._set_timeout()
            if fd is None:
                self.sock.sendall(header)
            else:
                sent = socket.send_fds(self.sock, [header], [fd])
                self.sock.sendall(header[sent:])
            self.sock.sendall(body)
        except OSError as error:
            raise TransferFailed("broken") from error

    def receive(self, kinds: tuple[Kind, ...], bytes_max: int) -> tuple[Kind, bytes]:
        """The next frame, which must be of one of these kinds and no larger."""
        kind, size, checksum = self._head(self._exactly(head.size), kinds, bytes_max)
        body = self._exactly(size)
        if zlib.crc32(body) != checksum:
            raise TransferFailed("broken")
        return kind, bytes(body)

    def receive_fd(self, kinds: tuple[Kind, ...], bytes_max: int) -> tuple[Kind, bytes, list[int]]:
        """The same with the file descriptors that came along; they are the caller's to close."""
        fds: list[int] = []
        try:
            self._set_timeout()
            start, fds, _, _ = socket.recv_fds(self.sock, head.size, 1)
            if not start:
                raise TransferFailed("broken")
            rest = self._exactly(head.size - len(start))
            kind, size, checksum = self._head(start + rest, kinds, bytes_max)
            body = self._exactly(size)
            if zlib.crc32(body) != checksum:
                raise TransferFailed("broken")
        except (OSError, TransferFailed) as error:
            close_all(fds)
            raise TransferFailed("broken") from error
        return kind, bytes(body), fds

    def receive_into(self, target: memoryview) -> None:
        """Fill `target` from data frames, exactly."""
        filled = 0
        while filled < len(target):
            left = len(target) - filled
            start = self._exactly(head.size)
            _, size, checksum = self._head(start, (Kind.DATA,), min(left, data_bytes_max))
            part = target[filled : filled + size]
            self._fill(part)
            if size == 0 or zlib.crc32(part) != checksum:
                raise TransferFailed("broken")
            filled += size

    def _head(
        self, data: bytes | bytearray, kinds: tuple[Kind, ...], bytes_max: int
    ) -> tuple[Kind, int, int]:
        mark, kind, size, checksum = head.unpack(data)
        if mark != magic or kind not in kinds or size > bytes_max:
            raise TransferFailed("broken")
        return Kind(kind), size, checksum

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        self._fill(memoryview(data))
        return data

    def _fill(self, target: memoryview) -> None:
        filled = 0
        try:
            while filled < len(target):
                self._set_timeout()
                count = self.sock.recv_into(target[filled:])
                if not count:
                    raise TransferFailed("broken")
                filled += count
        except OSError as error:
            raise TransferFailed("broken") from error

    def _set_timeout(self) -> None:
        left_s = self._deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TransferFailed("broken")
        self.sock.settimeout(left_s)


def close_all(fds: list[int]) -> None:
    """Close file descriptors that came and are not wanted."""
    for fd in fds:
        os.close(fd)
