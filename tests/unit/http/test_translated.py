from headrace.http.asgi import EventStream, Message, send_json
from headrace.http.translated import translated_send


class Shouting:
    """Turns text into capitals; a whole answer only when it is complete."""

    def __init__(self) -> None:
        self.begun: tuple[int, bytes] | None = None
        self._held = b""

    def begin(self, status: int, content_type: bytes) -> bytes:
        self.begun = (status, content_type)
        return b"text/loud"

    def feed(self, data: bytes, *, last: bool) -> bytes:
        assert self.begun is not None
        if self.begun[1].startswith(b"text/event-stream"):
            return data.upper()
        self._held += data
        return self._held.upper() if last else b""


async def test_a_whole_answer_has_its_new_length_and_type() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    body = Shouting()
    extra = [(b"x-extra", b"1")]
    await send_json(translated_send(send, body, extra), 201, b"abc", [(b"x-kept", b"2")])
    start, content = sent
    headers = dict(start["headers"])
    assert body.begun == (201, b"application/json")
    assert start["status"] == 201
    assert headers[b"content-type"] == b"text/loud"
    assert headers[b"content-length"] == b"3"
    assert (headers[b"x-extra"], headers[b"x-kept"]) == (b"1", b"2")
    assert content == {"type": "http.response.body", "body": b"ABC", "more_body": False}


async def test_a_stream_passes_as_it_comes() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    stream = EventStream(translated_send(send, Shouting()))
    await stream.write(b"data: a\n\n")
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert b"content-length" not in dict(sent[0]["headers"])
    assert sent[1]["body"] == b"DATA: A\n\n"
    await stream.close(b"data: b\n\n")
    assert sent[2]["body"] == b"DATA: B\n\n"
    assert sent[-1]["more_body"] is False
