from typing import Any

from headrace.engine_server.dry_breakers import BreakerTokens

texts = ["a", "", "\n", "b\n", "c:", ":\n\n", "né", "é", "aa"]


class FewTokens:
    vocab_size = len(texts)

    def token_bytes(self, token_id: int) -> bytes:
        return texts[token_id].encode()


def find(*wanted: str) -> tuple[int, ...]:
    tokenizer: Any = FewTokens()
    return BreakerTokens(tokenizer).find(wanted)


def test_every_token_with_the_text_in_it_is_found() -> None:
    assert find("\n") == (2, 3, 5)
    assert find("é") == (6, 7)
    assert find("a") == (0, 8)


def test_a_text_across_two_tokens_is_in_neither() -> None:
    assert find("b\nc") == ()
    assert find("\nb") == ()


def test_several_texts_share_their_tokens() -> None:
    assert find("\n", ":") == (2, 3, 4, 5)
    assert find() == ()
