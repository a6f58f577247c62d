"""Leases, and the conversation in which KV moves: by shared memory, over TCP, and cut anywhere."""

import gc
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.clock import SystemClock
from headrace.engine.kv_parcel import KvParcel
from headrace.engine_server import kv_wire
from headrace.engine_server.kv_fetch import Budget, KvFetcher
from headrace.engine_server.kv_lease import LeaseStore
from headrace.engine_server.kv_server import KvServer
from headrace.engine_server.kv_wire import Channel, Kind, TransferFailed
from headrace.engine_server.messages import KvSource
from headrace.sim.clock import ManualClock

key, fingerprint = b"k" * 32, b"f" * 32
block_bytes = 5000
other_platform = pytest.mark.skipif(sys.platform != "linux", reason="no abstract sockets here")


def parcel_of(blocks: int = 3) -> KvParcel:
    content = [bytes([number]) * block_bytes for number in range(1, blocks + 1)]
    names = tuple(bytes([number]) * 16 for number in range(blocks))
    return KvParcel(fingerprint, names, 16 * blocks - 3, 16, content, tuple(range(blocks)))


@dataclass
class Site:
    """An engine that gives, and one that takes."""

    store: LeaseStore
    server: KvServer
    fetcher: KvFetcher

    def source(self, transfer_id: str, *, engine_id: str | None = None) -> KvSource:
        where = self.server.engine_id if engine_id is None else engine_id
        return KvSource(transfer_id, where, "127.0.0.1", self.server.port)

    def put(self, blocks: int = 3) -> str:
        transfer_id = self.store.put(parcel_of(blocks))
        assert transfer_id is not None
        return transfer_id


@contextmanager
def make_site(*, taker_key: bytes = key, taker_fingerprint: bytes = fingerprint) -> Iterator[Site]:
    clock = SystemClock()
    store = LeaseStore(1_000_000, 30.0, clock)
    server = KvServer(store, key, fingerprint, clock, host="127.0.0.1", port=0)
    budget = Budget(100_000)
    fetcher = KvFetcher(taker_key, taker_fingerprint, block_bytes, budget, clock, 5.0)
    try:
        yield Site(store, server, fetcher)
    finally:
        server.close()


@pytest.fixture
def site() -> Iterator[Site]:
    with make_site() as made:
        made.server.start()
        yield made


def assert_came(parcel: KvParcel) -> None:
    wanted = parcel_of()
    assert list(parcel.blocks) == wanted.blocks
    assert parcel.blocks[1:] == wanted.blocks[1:]
    assert (parcel.names, parcel.fingerprint) == (wanted.names, fingerprint)
    assert (parcel.token_count, parcel.cached_tokens) == (45, 16)


@pytest.mark.parametrize(
    "engine_id", [pytest.param(None, marks=other_platform, id="shared memory"), "0" * 32]
)
def test_kv_comes_once_and_leaves_nothing(site: Site, engine_id: str | None) -> None:
    transfer_id = site.put()
    parcel = site.fetcher.fetch(site.source(transfer_id, engine_id=engine_id))
    assert_came(parcel)
    assert site.fetcher.budget.byte_count == 3 * block_bytes
    with pytest.raises(TransferFailed, match="gone"):
        site.fetcher.fetch(site.source(transfer_id, engine_id=engine_id))
    assert site.store.byte_count == 0
    del parcel
    gc.collect()
    assert site.fetcher.budget.byte_count == 0


def test_an_engine_that_is_not_there_is_unreachable(site: Site) -> None:
    source = KvSource(site.put(), "0" * 32, "", 1)
    with pytest.raises(TransferFailed, match="unreachable"):
        site.fetcher.fetch(source)
    with pytest.raises(TransferFailed, match="unreachable"):
        site.fetcher.fetch(msgspec.structs.replace(source, host="127.0.0.1"))


@pytest.mark.parametrize("engine_id", [None, "0" * 32])
def test_who_lacks_the_key_gets_nothing(engine_id: str | None) -> None:
    with make_site(taker_key=b"x" * 32) as site:
        site.server.start()
        transfer_id = site.put()
        with pytest.raises(TransferFailed, match="denied"):
            site.fetcher.fetch(site.source(transfer_id, engine_id=engine_id))
        assert site.store.byte_count == 3 * block_bytes


def test_an_engine_of_other_weights_is_told_so_and_the_lease_stays() -> None:
    with make_site(taker_fingerprint=b"g" * 32) as site:
        site.server.start()
        transfer_id = site.put()
        with pytest.raises(TransferFailed, match="fingerprint"):
            site.fetcher.fetch(site.source(transfer_id))
        assert site.store.byte_count == 3 * block_bytes


def test_who_takes_keeps_within_its_bounds(site: Site) -> None:
    with pytest.raises(TransferFailed, match="full"):
        site.fetcher.fetch(site.source(site.put(blocks=30)))
    assert site.fetcher.budget.byte_count == 0


def test_a_giver_that_lacks_the_key_is_not_believed(site: Site) -> None:
    ours, theirs = socket.socketpair()

    def lie() -> None:
        channel = Channel(theirs, SystemClock(), 5.0)
        channel.send(Kind.HELLO, bytes(32))
        channel.receive((Kind.ASK,), kv_wire.ask_bytes_max)
        offer = kv_wire.encode(
            kv_wire.Offer(fingerprint, (b"n" * 16,), 10, 0, block_bytes, by_segment=False)
        )
        channel.send(Kind.OFFER, kv_wire.encode(kv_wire.ProvenOffer(offer, bytes(32))))

    with ours, theirs:
        thread = threading.Thread(target=lie)
        thread.start()
        with pytest.raises(TransferFailed, match="denied"):
            site.fetcher.converse(ours, "0" * 32)
        thread.join()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


def through_a_bad_wire(
    site: Site, transfer_id: str, spoil: Callable[[int, bytearray], int | None]
) -> tuple[KvParcel | str, int]:
    """Fetch over TCP while `spoil(position, bytes)` sees all that the giver sends.

    It may change the bytes, and answers after how many of them the wire is cut. Returns what came
    or why not, and how many bytes were sent."""
    ours, near = tcp_pair()
    far, theirs = tcp_pair()
    sent = 0

    def give() -> None:
        with theirs:
            try:
                site.server.converse(theirs)
            except TransferFailed:
                return

    def forward() -> None:
        nonlocal sent
        try:
            while data := bytearray(far.recv(65536)):
                cut = spoil(sent, data)
                sent += len(data)
                near.sendall(data if cut is None else data[:cut])
                if cut is not None:
                    break
        except OSError:
            pass
        for sock in (near, far):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def back() -> None:
        with suppress(OSError):
            while data := near.recv(65536):
                far.sendall(data)
        with suppress(OSError):
            far.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=each) for each in (give, forward, back)]
    for thread in threads:
        thread.start()
    with ours:
        try:
            came: KvParcel | str = site.fetcher.converse(ours, transfer_id)
        except TransferFailed as failure:
            came = failure.result
    for thread in threads:
        thread.join()
    near.close()
    far.close()
    return came, sent


def test_an_untouched_wire_carries_it() -> None:
    with make_site() as site:
        came, _ = through_a_bad_wire(site, site.put(), lambda _position, _data: None)
        assert isinstance(came, KvParcel)
        assert_came(came)


def whole_size() -> int:
    with make_site() as site:
        return through_a_bad_wire(site, site.put(), lambda _position, _data: None)[1]


size = whole_size()


@settings(max_examples=60, deadline=None)
@given(place=st.one_of(st.integers(0, 500), st.integers(0, size - 1)))
def test_a_connection_that_is_cut_anywhere_gives_nothing_and_leaks_nothing(place: int) -> None:
    def cut(position: int, data: bytearray) -> int | None:
        return place - position if position <= place < position + len(data) else None

    with make_site() as site:
        came, _ = through_a_bad_wire(site, site.put(), cut)
        assert came == "broken"
        assert site.fetcher.budget.byte_count == 0
        assert site.store.byte_count in (0, 3 * block_bytes)
        site.store.close()
        assert site.store.byte_count == 0


@settings(max_examples=60, deadline=None)
@given(place=st.one_of(st.integers(0, 500), st.integers(0, size - 1)), flipped=st.integers(1, 255))
def test_a_changed_byte_anywhere_is_noticed(place: int, flipped: int) -> None:
    def flip(position: int, data: bytearray) -> int | None:
        if position <= place < position + len(data):
            data[place - position] ^= flipped
        return None

    with make_site() as site:
        came, _ = through_a_bad_wire(site, site.put(), flip)
        assert came == "broken"
        assert site.fetcher.budget.byte_count == 0


def test_strangers_bytes_are_no_ask(site: Site) -> None:
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"hrkt" + bytes(9), os.urandom(200)):
        with (
            suppress(OSError),  # it may hang up on a stranger who still talks
            socket.create_connection(("127.0.0.1", site.server.port)) as sock,
        ):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    assert_came(site.fetcher.fetch(site.source(site.put())))


def test_a_lease_ends_with_its_time() -> None:
    clock = ManualClock()
    store = LeaseStore(1_000_000, 30.0, clock)
    first = store.put(parcel_of())
    clock.advance(20)
    second = store.put(parcel_of())
    clock.advance(10)
    assert first is not None
    assert second is not None
    with store.take(first) as lease:
        assert lease is None
    assert store.results == {"expired": 1}
    with store.take(second) as lease:
        assert lease is not None
    assert store.byte_count == 0


def test_what_does_not_fit_is_not_kept() -> None:
    store = LeaseStore(4 * block_bytes, 30.0, ManualClock())
    kept = store.put(parcel_of())
    assert kept is not None
    assert store.put(parcel_of(2)) is None
    with store.take(kept):
        assert store.put(parcel_of(2)) is None  # what is with its taker counts still
    assert store.put(parcel_of(2)) is not None
    assert store.results == {"full": 2}
    store.close()
