import pytest

from headrace.base.errors import NotFound
from headrace.engine_server import response_store
from headrace.engine_server.response_store import ResponseStore
from headrace.protocol.responses_api import MessageItem


def response(response_id: str, text: str = "hi") -> dict[str, object]:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "role": "assistant", "content": [part], "id": "m"}
    return {"id": response_id, "output": [message]}


def test_a_conversation_is_what_was_asked_and_answered() -> None:
    store = ResponseStore()
    store.put(response("a"), [MessageItem("user", "hello")])
    asked, answered = store.get("a").conversation
    assert isinstance(asked, MessageItem)
    assert isinstance(answered, MessageItem)
    assert (asked.role, answered.role) == ("user", "assistant")


def test_the_one_that_nobody_asked_for_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "responses_max", 2)
    store = ResponseStore()
    for name in ("a", "b"):
        store.put(response(name), [])
    store.get("a")
    store.put(response("c"), [])
    store.get("a")
    store.get("c")
    with pytest.raises(NotFound):
        store.get("b")


def test_bytes_are_bounded_also_when_a_response_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "bytes_max", 1000)
    store = ResponseStore()
    store.put(response("a"), [])
    store.put(response("b"), [])
    store.put(response("b", "x" * 800), [])
    with pytest.raises(NotFound):
        store.get("a")
    store.get("b")
    store.put(response("c", "x" * 2000), [])
    with pytest.raises(NotFound):
        store.get("c")
    store.get("b")
    store.discard("b")
    store.put(response("d", "x" * 800), [])
    store.get("d")
