"""Forms written anew: another parser reads the same out of them, and nothing odd gets through."""

import email.policy
from collections.abc import AsyncIterator
from email.parser import BytesParser

import pytest

from headrace.base.errors import InvalidRequest, Unavailable
from headrace.gateway import media_form
from headrace.gateway.media_form import MediaForm

Parts = list[tuple[str, str | None, bytes]]


def sent(parts: Parts, boundary: str = "xyz", content_type: str = "audio/wav") -> bytes:
    """A form as a client writes it."""
    written = b""
    for name, filename, data in parts:
        written += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'.encode()
        if filename is not None:
            written += f'; filename="{filename}"\r\nContent-Type: {content_type}'.encode()
        written += b"\r\n\r\n" + data + b"\r\n"
    return written + f"--{boundary}--\r\n".encode()


async def read(data: bytes, boundary: str = "xyz", piece_bytes: int = 7) -> MediaForm:
    async def body() -> AsyncIterator[bytes]:
        for at in range(0, len(data), piece_bytes):
            yield data[at : at + piece_bytes]

    form = MediaForm()
    try:
        await form.read(f"multipart/form-data; boundary={boundary}", body())
    except BaseException:
        form.close()
        raise
    return form


async def written(form: MediaForm, model_name: str = "engine-name") -> Parts:
    """What the standard library reads in the form that is sent on."""
    body = form.body(model_name)
    data = b"".join([piece async for piece in body.pieces])
    assert len(data) == body.length
    head = f"Content-Type: {body.content_type}\r\n\r\n".encode()
    message = BytesParser(policy=email.policy.HTTP).parsebytes(head + data)
    found: Parts = []
    for part in message.iter_parts():
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        name = str(part.get_param("name", header="content-disposition"))
        found.append((name, part.get_filename(), payload))
    return found


parts: Parts = [
    ("model", None, b"logical"),
    ("file", "a.wav", b"\r\n--xy\x00\xff" * 9),
    ("prompt", None, "Grüße".encode()),
    ("granularity[]", None, b"word"),
    ("granularity[]", None, b"segment"),
]


@pytest.mark.parametrize("memory_bytes", [1024 * 1024, 8])
async def test_another_parser_reads_the_same_twice(
    memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_form, "memory_bytes_max", memory_bytes)
    form = await read(sent(parts))
    with form.held():
        expected = {("model", None, b"engine-name"), *parts[1:]}
        for _ in range(2):
            assert set(await written(form)) == expected
        assert (form.field("model"), form.files, form.file_bytes) == ("logical", 1, 72)
    with pytest.raises(Unavailable):
        await written(form)


async def test_what_a_form_is_known_by_is_what_it_says_and_not_its_boundary() -> None:
    one, same, other = (
        await read(sent(parts)),
        await read(sent(parts, "other"), "other"),
        await read(sent([*parts[:1], ("file", "a.wav", b"x"), *parts[2:]])),
    )
    with one.held(), same.held(), other.held():
        assert one.fingerprint == same.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("filename", "content_type"),
    [("../../etc/passwd", "text/html, x"), ("a\\b", "audio/wav\x00"), ("", "")],
)
async def test_odd_names_and_types_become_harmless(filename: str, content_type: str) -> None:
    form = await read(sent([("file", filename, b"x")], content_type=content_type))
    with form.held():
        pieces = b"".join([piece async for piece in form.body("m").pieces])
        [_, (_, name, data)] = await written(form)
    assert data == b"x"
    assert name is not None
    assert not set(name) & set('/\\"')
    assert b"text/html" not in pieces


@pytest.mark.parametrize(
    "data",
    [
        sent([("a b", None, b"")]),
        sent([("a", None, b""), ("a", None, b"")]),
        sent([(f"f{n}", None, b"") for n in range(65)]),
        sent([("prompt", None, bytes(200_000))]),
        sent(parts)[:-6],
    ],
)
async def test_forms_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        await read(data, piece_bytes=100_000)
