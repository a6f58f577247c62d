"""A model's special tokens: the one that begins a text, and all that end an answer.

Files differ in how much they say. The ids that a file names are taken as they are; a control token
with a text that model families use to end a turn ends an answer too, because an answer that runs
past its turn is worse than one that cannot write such a token.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.tokenizer.vocabulary import TokenKind, Vocabulary, fail, named_id

end_keys = ("eos_token_id", "eot_token_id", "eom_token_id")
end_texts = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<end_of_turn>",
        "<|end_of_turn|>",
        "</s>",
        "<eos>",
        "<EOT>",
    }
)
strip_key = "headrace.tokenizer.strip_after"
phi3_unstripped = frozenset({"<unk>", "<s>", "<|endoftext|>"})


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids with a meaning of their own."""

    bos_id: int | None
    eos_id: int | None
    eos_ids: frozenset[int]  # every id that ends an answer, `eos_id` among them
    adds_bos: bool  # a plain text begins with `bos_id`
    strip_after: frozenset[str] = frozenset()  # texts of tokens that swallow the space behind them


def read_special_tokens(
    metadata: Mapping[str, object], vocabulary: Vocabulary, *, adds_bos_default: bool
) -> SpecialTokens:
    """Take them out of a file's metadata; ModelFileError if an id is not in the vocabulary."""
    named = [named_id(metadata, key, vocabulary) for key in end_keys]
    control = vocabulary.literal_ids(frozenset({TokenKind.CONTROL}))
    eos_ids = {token_id for token_id in named if token_id is not None}
    eos_ids |= {control[text] for text in end_texts if text in control}
    bos_id = named_id(metadata, "bos_token_id", vocabulary)
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", adds_bos_default)
    if not isinstance(adds_bos, bool):
        fail("tokenizer.ggml.add_bos_token", "is not a boolean")
    if metadata.get("tokenizer.ggml.add_bos_token") is True and bos_id is None:
        fail("tokenizer.ggml.bos_token_id", "is missing, and add_bos_token asks for it")
    adds_bos = adds_bos and bos_id is not None
    strip_after = _strip_after(metadata, vocabulary)
    return SpecialTokens(bos_id, named[0], frozenset(eos_ids), adds_bos, strip_after)


def _strip_after(metadata: Mapping[str, object], vocabulary: Vocabulary) -> frozenset[str]:
    """A directory says which; of GGUF files only Phi-3's want it, as llama.cpp has it."""
    listed = metadata.get(strip_key)
    if isinstance(listed, list):
        return frozenset(str(text) for text in listed)
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    control = frozenset({TokenKind.CONTROL, TokenKind.USER_DEFINED})
    return frozenset(vocabulary.literal_ids(control)) - phi3_unstripped
