"""Record how llama.cpp cuts texts by each pre-tokenizer's name: the oracle of test_cuts.py.

    python -m tests.golden.record_cuts > tests/golden/cuts.json

by a Python that has `headrace[dev]` and `xllamacpp`. A usual vocabulary hides most cuts, because
its merges were learnt within them. This one is learnt across them, from the recorded texts uncut,
so that a cut that is missing shows as a token that crosses it. The model around it is as small as
llama.cpp takes.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import tokenizers
import xllamacpp
from gguf import GGUFWriter, TokenType

from headrace.tokenizer.pre_tokenizers import rules
from tests.golden.record_tokens import random_texts, texts, tokenize

vocabulary_size = 1500
width = 32  # of the model
more_texts = [
    "camelCase HTTPServer iOS ABCdef ÄÖü ǅ x́Y",
    "it's IT'S We'LL they'Re 'tis a'b don''t",
    "/usr/bin\n/a/b/\r\n ?/\n!!/ //\n\n/ -/",
    "1 12 123 1234 12345 a1b22c333 ٣٤٥ ½²",
    "。、「」 ...\n\n,,,\n ;; \t;\n\n\n",
]


def learn(samples: list[str]) -> tuple[list[str], list[list[str]]]:
    """Tokens and merges of byte-pair encoding over the texts as they are, cut nowhere."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=1,
        show_progress=False,
        special_tokens=["<|end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=6,
    )
    made.train_from_iterator(samples, trainer)
    model = json.loads(made.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), model["merges"]


def write_model(path: Path, pre_tokenizer: str, tokens: list[str], merges: list[list[str]]) -> None:
    """A llama of one layer of zeros with that vocabulary."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // 2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    square = np.zeros((width, width), np.float32)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for name in names:
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), width), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def record(path: Path, samples: list[str]) -> list[list[int]]:
    """llama.cpp's ids of each text."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.port, params.warmup, params.verbosity = 512, 0, False, 0
    server = xllamacpp.Server(params)  # answers as long as it is referred to
    return [tokenize(server.listening_address, text, False) for text in samples]


def main() -> None:
    """Write the recording to standard output; names that cut alike share their ids."""
    samples = texts + more_texts + random_texts(60)
    tokens, merges = learn(samples)
    ids: dict[str, list[list[int]]] = {}
    same_as: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in sorted(rules):
            path = Path(directory) / f"{name}.gguf"
            write_model(path, name, tokens, merges)
            found = record(path, samples)
            equal = next((other for other, known in ids.items() if known == found), None)
            if equal is None:
                ids[name] = found
            else:
                same_as[name] = equal
    recording = {
        "oracle": f"llama.cpp in xllamacpp {xllamacpp.__version__}",
        "tokens": tokens,
        "merges": merges,
        "texts": samples,
        "ids": ids,
        "same_as": same_as,
    }
    json.dump(recording, sys.stdout, ensure_ascii=True, separators=(",", ":"))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
