"""Directories in Hugging Face's layout with wrong JSON: a model, or one kind of error.

    python tests/fuzz/model_directory.py SEED_DIRECTORY... --seconds 600

Takes a file of a seed (config, tokenizer, a weights file's header, or its data), puts other things
where something was, and opens the result as a model is opened. Ends with every exception that is no
HeadraceError, once for each place in the code; a number repeats a case (`--first N --seconds 0`).
docs/benchmarks/fuzzing.md says what was run.
"""

import argparse
import copy
import json
import random
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.layout import runner_tensors
from headrace.weights.model_file import open_model
from headrace.weights.soundness import check_weights

replacements: list[Any] = [
    *(None, -1, 0, 1, 2, 3, True, False, 1.5, -0.5, 1e308, 1e-308, float("nan"), float("inf")),
    *(10**400, 2**31, 2**63, "", "x", "\ud800", "a b", [], [1], ["x"], [[]], [None], [1] * 50),
    *({}, {"type": "x"}, {"a": {"b": 1}}),
]
entries_max = 60  # of an object that are changed; of a list, four


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything inside."""
    if at:
        yield at
    if isinstance(value, dict):
        for key in list(value)[:entries_max]:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 4)):
            yield from places(value[index], (*at, index))


def changed(value: Any, rng: random.Random) -> Any:
    """The same JSON with something wrong in it."""
    value = copy.deepcopy(value)
    ways = list(places(value))
    if not ways:
        return value
    *above, last = rng.choice(ways)
    inner = value
    for key in above:
        inner = inner[key]
    old, kind = inner[last], rng.random()
    if kind < 0.15 and isinstance(inner, dict):
        del inner[last]
    elif kind < 0.4 and isinstance(old, int | float):
        inner[last] = rng.choice([old * 2, old + 1, old - 1, -old, old * 1000, old / 2])
    else:
        inner[last] = copy.deepcopy(rng.choice(replacements))
    return value


def damage(path: Path, rng: random.Random) -> None:
    """Change one file of a directory."""
    kinds = (".json", ".safetensors")
    file = rng.choice(sorted(each for each in path.rglob("*") if each.suffix in kinds))
    data = file.read_bytes()
    if file.suffix == ".json":
        file.write_text(json.dumps(changed(json.loads(data), rng)))
        return
    start = 8 + int.from_bytes(data[:8], "little")
    if rng.random() < 0.2:
        file.write_bytes(data[: rng.randrange(len(data))])
        return
    header = json.dumps(changed(json.loads(data[8:start]), rng)).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + data[start:])


def take(path: Path) -> None:
    """As far as a model can be taken without computing with it."""
    with open_model(path) as file:
        check_weights(file.tensors)
        runner_tensors(read_architecture(file), file.tensors)
        if "tokenizer.ggml.tokens" in file.metadata:
            Tokenizer.from_gguf_metadata(file.metadata).encode("a text, 12 <s>", add_special=True)


def failure(seed: Path, number: int, work: Path) -> tuple[str, int] | None:
    """Where a case ends in another error than ours; None if it does not."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(seed, work)
    damage(work, random.Random(number))
    try:
        take(work)
    except HeadraceError:
        return None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {last.filename}", last.lineno or 0
    return None


def main() -> None:
    """Run cases until the time is over, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    found: dict[tuple[str, int], str] = {}
    end, number = time.monotonic() + arguments.seconds, arguments.first
    with tempfile.TemporaryDirectory() as directory:
        while number == arguments.first or time.monotonic() < end:
            seed = arguments.seeds[number % len(arguments.seeds)]
            where = failure(seed, number, Path(directory) / "model")
            if where is not None:
                found.setdefault(where, f"{seed.name}, case {number}")
            number += 1
    for (error, line), case in found.items():
        sys.stdout.write(f"{error}:{line} ({case})\n")
    sys.stdout.write(f"{number - arguments.first} cases, {len(found)} findings\n")


if __name__ == "__main__":
    main()
