"""Record what llama.cpp makes of some texts: the oracle of test_tokens.py.

    python -m venv oracle && oracle/bin/pip install xllamacpp
    oracle/bin/python tests/golden/record_tokens.py MODEL.gguf > tests/golden/tokens.json

The demo model's vocabulary is used for every pre-tokenizer: its file is copied with another name in
`tokenizer.ggml.pre`, which changes how text is cut and leaves all ids comparable.
"""

import json
import random
import struct
import sys
import tempfile
import urllib.request
from pathlib import Path

import xllamacpp

pre_tokenizers = ("smollm", "gpt-2", "llama-bpe", "qwen2")
texts = [
    *("Hello, world!", "", " ", "  ", "a", " a", "\n", "\n\n", " \n ", "\t\n\t", "end\n"),
    *("The quick brown fox jumps over the lazy dog.", "camelCaseWords Snake_case ALLCAPS"),
    *("1234567890", "3.14159 and 1,000,000 or 0x1F", "2024-11-29 12:34:56", "0" * 37),
    *("It's, don't, I'LL we'VE they're 'S 'x", "'", "''", "'s", " 's", "'\u017f"),
    *(
        "emoji 🎉👩\u200d👩\u200d👧🇩🇪 done",
        "\U0001d4b3\U0001d4ce math",
        "naïve café résumé Ångström ﬁ ½ ²",
    ),
    *("你好\uff0c世界。这是一个测试", "こんにちは世界、テストです", "안녕하세요 세계"),
    *("Привет, мир! Как дела?", "مرحبا بالعالم \u0661\u0662", "नमस्ते दुनिया", "สวัสดีชาวโลก"),
    *("tabs\tand\t\ttabs", "line\nline\n\nline\r\nline\r\n\r\n", "trailing   ", "   leading"),
    *(
        "a  b   c    d",
        "a\n  b\n    c",
        "    \n    \n",
        "a \n b",
        "x\u3000y",
        "\u00a0x\u00a0\u00a0y",
    ),
    *("zero\u200bwidth", "e\u0301 combining", "\ufeffBOM", "\0nul\1", "\u2028ls", "\x85nel"),
    "x = [i**2 for i in range(10)]  # squares\n",
    'def f(x: int) -> str:\n    """Doc."""\n    return f"{x!r}"\n',
    '#include <stdio.h>\nint main(void) { printf("%d\\n", 42); return 0; }',
    '{"key": [1, 2.5, null, true], "nested": {"a": "b"}}',
    *("<|im_start|>user\nHi<|im_end|>\n", "<|im_start", "a<|endoftext|>b", "<repo_name>x"),
    *("https://example.com/path?q=1&r=2#frag", "$100.00 + €50 = £80?", "!!!???...", "A" * 100),
]


def random_texts(count: int) -> list[str]:
    """Texts that nobody would think of, the same ones every time."""
    numbers = random.Random(7)
    alphabet = "abcXYZ 019.,;!?'\"\n\t\r-_()[]{}<>|/\\é漢字ß🎉\u0661 \u00a0\u3000    "
    return [
        "".join(numbers.choice(alphabet) for _ in range(numbers.randint(1, 40)))
        for _ in range(count)
    ]


def with_pre_tokenizer(model: bytes, name: str) -> bytes:
    """The file with another pre-tokenizer, and the model's name shorter by what that is longer."""
    grown = _replace(model, b"tokenizer.ggml.pre", name.encode())
    excess = len(grown) - len(model)
    title = _value(grown, b"general.name")
    return _replace(grown, b"general.name", title[: len(title) - excess].ljust(len(title) - excess))


def _place(model: bytes, key: bytes) -> tuple[int, int]:
    start = model.index(key + struct.pack("<I", 8)) + len(key) + 4
    return start, struct.unpack_from("<Q", model, start)[0]


def _value(model: bytes, key: bytes) -> bytes:
    start, length = _place(model, key)
    return model[start + 8 : start + 8 + length]


def _replace(model: bytes, key: bytes, value: bytes) -> bytes:
    start, length = _place(model, key)
    return model[:start] + struct.pack("<Q", len(value)) + value + model[start + 8 + length :]


def tokenize(url: str, text: str, parse_special: bool) -> list[int]:
    """Ask llama.cpp's server."""
    body = {"content": text, "parse_special": parse_special, "add_special": False}
    request = urllib.request.Request(
        f"{url}/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: list[int] = json.load(answer)["tokens"]
        return found


def record(model: bytes, name: str, samples: list[str]) -> list[list[list[int]]]:
    """For each text, its ids with control tokens as text and as tokens."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(with_pre_tokenizer(model, name))
        file.flush()
        params = xllamacpp.CommonParams()
        params.model.path = file.name
        params.n_ctx, params.port, params.warmup, params.verbosity = 512, 0, False, 0
        server = xllamacpp.Server(params)
        url = server.listening_address
        return [[tokenize(url, text, False), tokenize(url, text, True)] for text in samples]


def main() -> None:
    """Write the recording to standard output."""
    model = Path(sys.argv[1]).read_bytes()
    samples = texts + random_texts(60)
    recording = {
        "oracle": f"llama.cpp in xllamacpp {xllamacpp.__version__}",
        "texts": samples,
        "ids": {name: record(model, name, samples) for name in pre_tokenizers},
    }
    json.dump(recording, sys.stdout, ensure_ascii=True, separators=(",", ":"))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
