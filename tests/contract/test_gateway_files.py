"""Uploads that are no honest form are refused and leave nothing; what batches leave is bounded."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from headrace.gateway import batches, files
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site

end = b"--xyz--\r\n"


def part(name: bytes, content: bytes, filename: bytes = b"") -> bytes:
    file = b'; filename="%b"' % filename if filename else b""
    head = b'--xyz\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n' % (name, file)
    return head + content + b"\r\n"


purpose = part(b"purpose", b"batch")
file = part(b"file", b'{"a": 1}\n', b"in.jsonl")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine()]) as running:
        yield running


async def upload(site: GatewaySite, *pieces: bytes) -> tuple[int, str]:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    headers = {
        "Authorization": f"Bearer {site.api_key}",
        "Content-Type": "multipart/form-data; boundary=xyz",
    }
    async with (
        aiohttp.ClientSession(site.url) as session,
        session.post("/v1/files", data=body(), headers=headers) as answer,
    ):
        return answer.status, await answer.text()


def kept(tmp_path: Path) -> list[bytes]:
    """The contents that lie on the disk."""
    return [each.read_bytes() for each in tmp_path.rglob("*.content")]


def batches_of(tmp_path: Path) -> set[str]:
    """The batches that lie on the disk."""
    return {each.name.partition(".")[0] for each in tmp_path.rglob("batch_*")}


async def test_what_follows_the_end_of_a_form_is_dropped(site: GatewaySite, tmp_path: Path) -> None:
    status, text = await upload(site, purpose, file, end, *[b"x" * 65_536] * 8)
    assert status == 200, text
    assert kept(tmp_path) == [b'{"a": 1}\n']


@pytest.mark.parametrize(
    ("sent", "word"),
    [
        ((purpose, file, file, end), "one file"),
        ((purpose, *(part(b"f%d" % n, b"") for n in range(100)), file, end), "parts"),
        ((purpose, part(b"note", b"x" * 2000), file, end), "too long"),
        ((purpose, file), "missing"),
        ((purpose, end), "no file"),
        ((part(b"purpose", b"mischief"), file, end), "purpose"),
        ((b"no form at all",), "missing"),
    ],
)
async def test_what_is_no_form_with_one_file_is_refused_and_leaves_nothing(
    site: GatewaySite, tmp_path: Path, sent: tuple[bytes, ...], word: str
) -> None:
    status, text = await upload(site, *sent)
    assert status == 400
    assert word in text
    assert kept(tmp_path) == []


@pytest.mark.parametrize("where", ["before", "behind"])
async def test_a_form_without_an_end_is_refused_by_its_size(
    site: GatewaySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(files, "form_bytes_max", 100_000)
    form, more = (purpose, file, end), [b"x" * 60_000] * 2
    sent = (*more, b"\r\n", *form) if where == "before" else (*form, *more)
    assert (await upload(site, *sent))[0] == 413
    assert kept(tmp_path) == []


async def test_batches_that_ended_are_kept_up_to_a_bound_and_their_files_stay(
    site: GatewaySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ended_per_project_max", 2)
    status, text = await upload(site, purpose, file, end)
    assert status == 200
    asked = {
        "input_file_id": msgspec.json.decode(text)["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    made = []
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as session:
        for _ in range(5):
            async with session.post("/v1/batches", json=asked) as answer:
                made.append((await answer.json())["id"])
            batch = {"status": ""}
            while batch["status"] != "failed":  # its only line is no request
                async with session.get(f"/v1/batches/{made[-1]}") as answer:
                    batch = await answer.json()
        async with session.get("/v1/batches") as answer:
            listed = [each["id"] for each in (await answer.json())["data"]]
        async with session.get(f"/v1/batches/{made[0]}") as answer:
            assert answer.status == 404
    assert listed == made[:1:-1]  # the newest, and the two that had ended before it
    assert batches_of(tmp_path) == set(made[2:])
    assert kept(tmp_path) == [b'{"a": 1}\n']
