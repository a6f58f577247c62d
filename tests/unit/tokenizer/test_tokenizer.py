import threading
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest, ModelFileError
from headrace.tokenizer.tokenizer import Tokenizer

HELLO, SPACE_HELLO, START, END, EOS, THINK = 259, 260, 261, 262, 263, 264


def test_merges_are_applied_by_rank(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("hello") == [HELLO]
    assert tokenizer.encode("hello hello") == [HELLO, SPACE_HELLO]
    assert tokenizer.encode("help") == [256, ord("l"), ord("p")]


def test_any_text_comes_back_from_its_tokens(tokenizer: Tokenizer) -> None:
    text = "héllo \0 世界 🎉 \r\n\t <|start|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_are_read_from_text_only_when_asked(tokenizer: Tokenizer) -> None:
    text = "<|start|>hello<|end|>"
    assert tokenizer.encode(text, parse_special=True) == [START, HELLO, END]
    plain = tokenizer.encode(text)
    assert not {START, END, EOS} & set(plain)
    assert b"".join(map(tokenizer.token_bytes, plain)) == text.encode()


def test_user_defined_tokens_are_always_read(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<think>hello") == [THINK, HELLO]
    assert tokenizer.encode("<think>hello", parse_special=True) == [THINK, HELLO]


def test_the_longest_of_overlapping_special_tokens_is_read(make: Any, metadata: Any) -> None:
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|start|>x"]
    kinds = np.append(metadata["tokenizer.ggml.token_type"], 3)
    longer = make({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds})
    assert longer.encode("<|start|>x<|start|>y", parse_special=True) == [265, START, ord("y")]


def test_the_beginning_token_is_added_where_the_file_says_so(make: Any) -> None:
    assert make().encode("hello", add_special=True) == [START, HELLO]
    without = make({"tokenizer.ggml.add_bos_token": False})
    assert without.encode("hello", add_special=True) == [HELLO]


def test_the_beginning_token_is_added_where_the_family_does(make: Any) -> None:
    silent = {"tokenizer.ggml.add_bos_token": None}
    assert make(silent).encode("hello", add_special=True) == [HELLO]
    llama = make(silent | {"tokenizer.ggml.pre": "llama-bpe"})
    assert llama.encode("hello", add_special=True) == [START, HELLO]


def test_the_empty_text_has_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_every_id_that_ends_an_answer_is_known(make: Any) -> None:
    assert make().eos_ids == {END, EOS}
    assert make().bos_id == START
    nothing = {f"tokenizer.ggml.{name}_token_id": None for name in ("bos", "eos", "eot")}
    bare = make(nothing | {"tokenizer.ggml.add_bos_token": None})
    assert bare.eos_ids == {END}  # by its text
    assert bare.bos_id is None


def test_a_control_token_with_a_turns_usual_end_ends_an_answer(make: Any, metadata: Any) -> None:
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|im_end|>", "<|eot_id|>"]
    kinds = np.append(metadata["tokenizer.ggml.token_type"], [3, 1])
    found = make({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds})
    assert found.eos_ids == {END, EOS, 265}


def test_control_tokens_have_bytes_and_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(START) == b"<|start|>"
    assert tokenizer.token_bytes(0xE4) == b"\xe4"
    assert tokenizer.token_bytes(SPACE_HELLO) == b" hello"
    assert tokenizer.decode([START, HELLO, THINK, END]) == "hello<think>"


@pytest.mark.parametrize("token_id", [-1, 265, 2**40])
def test_an_id_that_does_not_exist_has_no_text(tokenizer: Tokenizer, token_id: int) -> None:
    assert tokenizer.vocab_size == 265
    assert tokenizer.token_bytes(token_id) == b""
    assert tokenizer.decode([HELLO, token_id, HELLO]) == "hellohello"


def test_bytes_that_are_no_utf_8_become_replacement_characters(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([0xE4, ord("a")]) == "\ufffda"
    assert tokenizer.decode([0xE4, 0xB8]) == "\ufffd"


@pytest.mark.parametrize("text", ["\ud800", "hello \udfff hello", "<|start|>\ud83d"])
def test_half_a_surrogate_pair_is_the_callers_error(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer.encode(text, parse_special=True)


def test_a_long_text_is_encoded_while_another_thread_runs(tokenizer: Tokenizer) -> None:
    """Were the lock of the interpreter held, this thread could not count in the meantime."""
    done = threading.Event()
    started = threading.Event()

    def encode() -> None:
        started.set()
        tokenizer.encode("hello world " * 30_000)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    started.wait()
    turns = 0
    while not done.is_set():
        turns += 1
    thread.join()
    assert turns > 1000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokenizer.ggml.model", "plamo2"),
        ("tokenizer.ggml.model", None),
        ("tokenizer.ggml.pre", "made-up"),
        ("tokenizer.ggml.pre", None),
        ("tokenizer.ggml.tokens", None),
        ("tokenizer.ggml.tokens", []),
        ("tokenizer.ggml.tokens", np.arange(3)),
        ("tokenizer.ggml.tokens", ["\ud800"]),
        ("tokenizer.ggml.token_type", np.ones(3, np.int32)),
        ("tokenizer.ggml.token_type", np.ones(265, np.float32)),
        ("tokenizer.ggml.token_type", "normal"),
        ("tokenizer.ggml.merges", None),
        ("tokenizer.ggml.merges", ["hello"]),
        ("tokenizer.ggml.merges", ["h "]),
        ("tokenizer.ggml.merges", ["h e l"]),
        ("tokenizer.ggml.merges", ["h x"]),
        ("tokenizer.ggml.merges", ["he zz"]),
        ("tokenizer.ggml.bos_token_id", 265),
        ("tokenizer.ggml.bos_token_id", -1),
        ("tokenizer.ggml.bos_token_id", None),
        ("tokenizer.ggml.eos_token_id", "263"),
        ("tokenizer.ggml.eot_token_id", True),
        ("tokenizer.ggml.add_bos_token", 1),
        ("tokenizer.chat_template", 5),
    ],
)
def test_what_is_wrong_with_a_vocabulary_is_named(make: Any, field: str, value: Any) -> None:
    with pytest.raises(ModelFileError) as raised:
        make({field: value})
    assert raised.value.fields["field"] == field
    assert field in raised.value.message


def test_merges_cannot_build_a_control_token(make: Any, metadata: Any) -> None:
    kinds = metadata["tokenizer.ggml.token_type"].copy()
    kinds[HELLO] = 3
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.merges"):
        make({"tokenizer.ggml.token_type": kinds})


def test_a_word_that_is_a_control_token_is_not_taken_whole(make: Any, metadata: Any) -> None:
    tokens = [*metadata["tokenizer.ggml.tokens"], "secret"]
    kinds = np.append(metadata["tokenizer.ggml.token_type"], 3)
    found = make(
        {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.pre": "llama-bpe",
        }
    )
    assert found.encode("secret") == list(b"secret")


def test_the_unknown_pre_tokenizer_is_named(make: Any) -> None:
    with pytest.raises(ModelFileError, match="'made-up'"):
        make({"tokenizer.ggml.pre": "made-up"})


def test_a_file_without_types_has_only_normal_tokens(make: Any) -> None:
    plain = make({"tokenizer.ggml.token_type": None})
    assert plain.encode("<|start|>", parse_special=True) == list(b"<|start|>")


def test_a_model_without_a_template_cannot_chat(make: Any) -> None:
    plain = make({"tokenizer.chat_template": None})
    assert plain.chat_template is None
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        plain.encode_chat([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_template_alone_decides_about_the_first_token(make: Any, adds_bos: bool) -> None:
    asked = [{"role": "user", "content": "hello"}]
    for start, expected in (("{{ bos_token }}", 1), ("", 0)):
        changes: dict[str, object] = {
            "tokenizer.chat_template": start + "{{ messages[0].content }}",
            "tokenizer.ggml.add_bos_token": adds_bos,
        }
        assert make(changes).encode_chat(asked).count(261) == expected
