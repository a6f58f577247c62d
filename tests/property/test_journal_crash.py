"""A crash at any byte loses no durable record and doubles none, life after life.

A crash keeps everything that was synced and any prefix of what was written behind it. Each life
of the gateway recovers, goes on, ships some of its journal, and dies at a random byte.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ledger.admission import Admission
from headrace.ledger.frames import scan
from headrace.ledger.journal import Journal, JournalLimits
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome, Reservation, Settlement, TokenUsage
from headrace.ledger.segments import list_segments
from headrace.ledger.shipper import Shipper
from headrace.sim.clock import ManualClock
from headrace.spec.prices import Price, PriceVersion
from headrace.storage import LedgerSnapshot

# What a crash leaves is made here, byte by byte, so no real sync is waited for where that can be.
memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
timeout_s = 60.0
limits = JournalLimits(segment_bytes=700, emergency_bytes=1_000, retry_s=0.001)
price = PriceVersion(
    "prb",
    Price(
        input_nanousd_per_million=1_000_000,
        cached_input_nanousd_per_million=1_000_000,
        output_nanousd_per_million=1_000_000,
    ),
)
usage = TokenUsage(3, 0, 4)
amount_nanousd = 7


class DictionaryLedger:
    """A ledger that loses nothing, and is never told two endings of one request."""

    def __init__(self) -> None:
        self.booked: dict[str, Settlement] = {}
        self.sequences: dict[str, int] = {}

    def post(
        self,
        records: Sequence[Settlement],
        *,
        journal_id: str | None = None,
        sequence: int | None = None,
    ) -> int:
        before = len(self.booked)
        for record in records:
            assert self.booked.setdefault(record.request_id, record) == record
        assert journal_id is not None
        assert sequence is not None
        self.sequences[journal_id] = max(sequence, self.sequences.get(journal_id, 0))
        return len(self.booked) - before

    def snapshot(self) -> LedgerSnapshot:
        spent = sum(record.amount_nanousd or 0 for record in self.booked.values())
        return LedgerSnapshot({"ten_a": -spent}, dict(self.sequences))


class Life:
    """One process, from recovery to its death."""

    def __init__(self, directory: Path, ledger: DictionaryLedger) -> None:
        self.directory = directory
        self.journal = Journal(directory, limits)
        self.admission = Admission(ManualClock())
        self.meter = Meter(self.admission, self.journal)
        self.recovered = self.meter.recover(ledger.snapshot())
        self.shipper = Shipper(self.journal, ledger, self.admission)
        self.sequence = 0

    def reserve(self, request_id: str) -> Reservation:
        return self.meter.reserve(
            request_id=request_id,
            tenant_id="ten_a",
            project_id="p",
            key_id="k",
            model="m",
            price=price,
            credit_floor_nanousd=None,
            prompt_tokens_max=10,
            output_tokens_max=10,
        )

    def sync(self) -> dict[Path, int]:
        """Wait for the disk, and note what is on it."""
        self.journal.wait_durable(self.journal._sequence, timeout_s)
        return {path: scan(path.read_bytes()).end for path in list_segments(self.directory)}

    def die(self, durable: dict[Path, int], kept_bytes: int) -> None:
        """Keep what is durable and `kept_bytes` of what was written behind it."""
        self.journal.close()
        for path in list_segments(self.directory):
            start_bytes = durable.get(path, 0)
            end_bytes = min(path.stat().st_size, start_bytes + kept_bytes)
            kept_bytes -= end_bytes - start_bytes
            content = path.read_bytes()[:end_bytes]
            if path not in durable and not content:
                path.unlink()
            else:
                path.write_bytes(content)


actions = st.lists(
    st.sampled_from(["reserve", "reserve", "checkpoint", "settle", "sync", "ship"]), max_size=25
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(actions, st.integers(0, 4_000)), min_size=1, max_size=4))
def test_no_durable_record_is_lost_and_none_is_doubled(
    lives: list[tuple[list[str], int]],
) -> None:
    ledger = DictionaryLedger()
    durably_reserved: set[str] = set()
    durably_settled: set[str] = set()
    durably_recovered: set[str] = set()
    with tempfile.TemporaryDirectory(dir=memory) as name:
        directory = Path(name)
        for number, (steps, kept_bytes) in enumerate(lives):
            life = Life(directory, ledger)
            recovered = {item.request_id for item in life.recovered}
            assert not recovered & (durably_settled | durably_recovered)
            durably_recovered |= recovered  # `live` syncs before anything else
            durable = live(life, f"life{number}", steps, durably_reserved, durably_settled)
            life.die(durable, kept_bytes)
        last = Life(directory, ledger)
        assert last.journal.problems == []
        last.sync()
        last.shipper.drain()
        assert durably_reserved <= set(ledger.booked)
        for request_id in durably_settled:
            assert ledger.booked[request_id].outcome is Outcome.FINISHED
            assert ledger.booked[request_id].amount_nanousd == amount_nanousd
        assert (
            last.admission.available_nanousd("ten_a") == ledger.snapshot().balances_nanousd["ten_a"]
        )
        last.journal.close()


def live(
    life: Life, name: str, steps: list[str], reserved: set[str], settled: set[str]
) -> dict[Path, int]:
    """Do what a gateway does; what became durable is added to the sets."""
    running: list[Reservation] = []
    written: set[str] = set()
    finished: set[str] = set()
    durable = life.sync()
    for number, step in enumerate(steps):
        if step == "reserve":
            running.append(life.reserve(f"{name}-{number}"))
            written.add(running[-1].request_id)
        elif step == "checkpoint" and running:
            life.meter.checkpoint(running[-1], usage)
        elif step == "settle" and running:
            held = running.pop(0)
            life.meter.settle(held, usage, Outcome.FINISHED)
            finished.add(held.request_id)
        elif step in ("sync", "ship"):
            if step == "ship":
                life.sync()
                life.shipper.ship_once()
            durable = life.sync()
            reserved |= written
            settled |= finished
    return durable


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=40))
def test_damage_anywhere_costs_only_the_records_it_touches(position: int, garbage: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=memory) as name:
        directory = Path(name)
        life = Life(directory, DictionaryLedger())
        ends = []
        for number in range(12):
            life.reserve(f"r{number}")
            ends.append(sum(life.sync().values()))
        life.journal.close()
        paths = list_segments(directory)
        stream = bytearray(b"".join(path.read_bytes() for path in paths))
        start = position % len(stream)
        stream[start : start + len(garbage)] = garbage[: len(stream) - start]
        offset = 0
        for path in paths:
            size_bytes = path.stat().st_size
            path.write_bytes(stream[offset : offset + size_bytes])
            offset += size_bytes
        journal = Journal(directory, limits)
        found = {running.reservation.request_id for running in journal.running()}
        begins = [0, *ends[:-1]]
        untouched = {
            f"r{number}"
            for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
            if end <= start or begin >= start + len(garbage)
        }
        assert untouched <= found
        journal.close()
