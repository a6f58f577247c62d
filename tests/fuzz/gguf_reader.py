"""Coverage-guided fuzzing of the GGUF reader: whatever the bytes, a model or one kind of error.

    pip install atheris
    python tests/fuzz/gguf_reader.py FOUND tests/corpus/gguf -max_total_time=3600 -max_len=20000

atheris (libFuzzer) changes the corpus's files, keeps those that reach new code in FOUND, and stops
at the first exception that is no HeadraceError. Shorter files than 20,000 bytes would cut the seeds
off. tests/unit/weights/test_gguf_corpus.py replays the corpus; docs/benchmarks/fuzzing.md says what
was run.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["headrace.weights", "headrace.tokenizer"]):
    from headrace.base.errors import HeadraceError
    from headrace.tokenizer.tokenizer import Tokenizer
    from headrace.weights.architecture_reader import read_architecture
    from headrace.weights.gguf import open_gguf
    from headrace.weights.layout import runner_tensors
    from headrace.weights.soundness import check_weights

memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
path = memory / f"headrace-fuzz-{os.getpid()}.gguf"


def read(data: bytes) -> None:
    """Take the bytes as far as a model can be taken without computing with it."""
    path.write_bytes(data)
    try:
        with open_gguf(path) as file:
            check_weights(file.tensors)
            tokenizer_of(file.metadata)
            spec = read_architecture(file)
            runner_tensors(spec, file.tensors)
    except HeadraceError:
        return


def tokenizer_of(metadata: Mapping[str, object]) -> None:
    """The tokenizer, whose own refusals must not hide the rest."""
    try:
        Tokenizer.from_gguf_metadata(metadata).encode("a text, 12 <s>", add_special=True)
    except HeadraceError:
        return


if __name__ == "__main__":
    atheris.Setup(sys.argv, read)
    try:
        atheris.Fuzz()
    finally:
        path.unlink(missing_ok=True)
