"""Does our speed cost quality? KL from the float reference, ours beside llama.cpp's, type by type.

Makes a file of each type out of one file of float weights, by `headrace quantize`'s code, reads the
same text with both engines from that same file, and compares each one's next-token distributions
with those of the float forward pass in NumPy over the unquantized weights. What a type loses by
rounding is in both; what differs is how the engines compute. Ours does so twice: with activations
of 16 bits, and with those of 8 that quantized weights are multiplied with as it comes (of more
than 4 bits with AVX2 and AVX-VNNI alone: HEADRACE_CPU_ISA=avx2).

    pip install xllamacpp
    python bench/quality.py MODEL-F16.gguf --json docs/benchmarks/quality.json

The text is Python's own documentation (`pydoc_data.topics`), so that anyone has it. llama.cpp is
asked through its server's /completion for its likeliest tokens behind each prefix; all others
count as one, for all three, so that every divergence is of the same events.
"""

import argparse
import json
import math
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import xllamacpp
from matplotlib.figure import Figure
from numpy.typing import NDArray

from headrace.cli.check import documentation_text
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.scored_text import divergence, log_softmax, text_logits
from headrace.kernels.reference.dequantize import dequantize
from headrace.kernels.reference.transformer import forward
from headrace.sim.progress import SilentProgress
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.layout import runner_tensors
from headrace.weights.model_file import open_model
from headrace.weights.quantize import quantize_model
from headrace.weights.tensor import TensorType

types_default = (
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0"),
    *("MXFP4", "IQ4_NL", "IQ4_XS", "Q3_K", "Q2_K"),
)
listed_tokens = 2_000  # of a place; what is left has about a thousandth of the probability
Logprobs = NDArray[np.float64]  # (vocab_size,)


@dataclass(frozen=True)
class Row:
    """One type."""

    type: str
    size_bytes: int
    kl_headrace: float
    kl_headrace_8bit: float  # with 8-bit activations, where they are faster
    kl_llama_cpp: float
    ratio: float  # ours over theirs
    ratio_8bit: float
    same_top_headrace: float
    same_top_llama_cpp: float


def make_file(source: Path, target: Path, name: str) -> None:
    """The model in one type."""
    with open_model(source) as file:
        quantize_model(file, target, TensorType[name], SilentProgress())


def reference(path: Path, tokens: Sequence[int]) -> list[Logprobs]:
    """What the float weights say after each token."""
    with open_model(path) as file:
        spec = read_architecture(file)
        values = {
            name: dequantize(int(tensor.type), np.asarray(tensor.data), tensor.shape)
            for name, tensor in runner_tensors(spec, file.tensors).items()
        }
    return [log_softmax(logits) for logits in forward(spec, values, tokens)]


def of_headrace(
    path: Path, tokens: Sequence[int], threads: int, activation_bits: Literal[8, 16]
) -> list[Logprobs]:
    """Our compiled runner's."""
    with open_model(path) as file:
        spec = read_architecture(file)
        runner = CpuRunner(
            file,
            spec,
            kv_tokens=2 * len(tokens) + 64,
            rows_max=32,
            sequences_max=32,
            threads=threads,
            activation_bits=activation_bits,
        )
    with runner:
        return [log_softmax(logits) for logits in text_logits(runner, tokens)]


def of_llama_cpp(
    path: Path, tokens: Sequence[int], places: Sequence[int], threads: int
) -> Iterator[dict[int, float]]:
    """llama.cpp's log-probabilities of its likeliest tokens, behind the tokens up to each place."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = str(path), 2 * len(tokens) + 64, 1
    params.warmup, params.cpuparams.n_threads = False, threads
    server = xllamacpp.Server(params)
    for place in places:
        body = {"prompt": list(tokens[: place + 1]), "n_predict": 1, "n_probs": listed_tokens}
        body |= {"temperature": 0, "cache_prompt": True}
        request = urllib.request.Request(
            f"{server.listening_address}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            listed = json.load(answer)["completion_probabilities"][0]["top_logprobs"]
        yield {entry["id"]: entry["logprob"] for entry in listed}


def grouped(logprobs: Logprobs, ids: Sequence[int]) -> Logprobs:
    """The tokens that are listed, and all others as one."""
    chosen = logprobs[list(ids)]
    rest = max(1.0 - float(np.exp(chosen).sum()), 1e-12)
    return np.append(chosen, np.log(rest))


def compare(
    expected: Sequence[Logprobs], ours: Sequence[Logprobs], theirs: Sequence[dict[int, float]]
) -> tuple[float, float, float, float]:
    """Mean KL of ours and theirs, and how often each takes the reference's first choice."""
    rows = []
    for before, mine, listed in zip(expected, ours, theirs, strict=True):
        ids = list(listed)
        other = grouped(np.array(list(listed.values())), range(len(ids)))
        target = grouped(before, ids)
        first = int(before.argmax())
        rows.append(
            (
                divergence(target, grouped(mine, ids)),
                divergence(target, other),
                int(mine.argmax()) == first,
                ids[0] == first,
            )
        )
    our_kl, their_kl, our_same, their_same = np.mean(np.array(rows, np.float64), axis=0).tolist()
    return our_kl, their_kl, our_same, their_same


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    names = ["type", "MB", "KL headrace", "KL llama.cpp", "ratio", "same first choice"]
    names += ["KL headrace, 8 bits", "ratio"]
    lines = [f"| {' | '.join(names)} |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    lines += [
        f"| {row.type} | {row.size_bytes / 1e6:.1f} | {row.kl_headrace:.5f} "
        f"| {row.kl_llama_cpp:.5f} | {row.ratio:.3f} "
        f"| {row.same_top_headrace:.1%} / {row.same_top_llama_cpp:.1%} "
        f"| {row.kl_headrace_8bit:.5f} | {row.ratio_8bit:.3f} |"
        for row in rows
    ]
    return "\n".join(lines)


def plot(rows: Sequence[Row], paths: Sequence[Path]) -> None:
    """Divergence over size, both engines, their points by type."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    sizes = [row.size_bytes / 1e6 for row in rows]
    for name, marker, values in (
        ("headrace", "o", [row.kl_headrace for row in rows]),
        ("headrace, 8-bit activations", "+", [row.kl_headrace_8bit for row in rows]),
        ("llama.cpp", "x", [row.kl_llama_cpp for row in rows]),
    ):
        axes.plot(sizes, [max(value, 1e-6) for value in values], marker, label=name)
    for row, size in zip(rows, sizes, strict=True):
        place = (size, max(row.kl_llama_cpp, 1e-6))
        axes.annotate(row.type, place, textcoords="offset points", xytext=(5, 4), fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="file size (MB)", ylabel="KL from floats (nats)")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    for path in paths:
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Read the arguments, compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--types", nargs="+", default=types_default, choices=types_default)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--places", type=int, default=48, help="positions that are compared")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with open_model(arguments.source) as file:
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
    tokens = tokenizer.encode(documentation_text(), add_special=True)[: arguments.tokens]
    step = math.ceil(len(tokens) / arguments.places)
    places = range(step - 1, len(tokens), step)
    expected = reference(arguments.source, tokens)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for name in arguments.types:
            made = Path(directory) / f"{name}.gguf"
            make_file(arguments.source, made, name)
            ours = of_headrace(made, tokens, arguments.threads, 16)
            coarse = of_headrace(made, tokens, arguments.threads, 8)
            theirs = list(of_llama_cpp(made, tokens, places, arguments.threads))
            target = [expected[place] for place in places]
            our_kl, their_kl, our_same, their_same = compare(
                target, [ours[place] for place in places], theirs
            )
            coarse_kl = compare(target, [coarse[place] for place in places], theirs)[0]
            rows.append(
                Row(
                    name,
                    made.stat().st_size,
                    our_kl,
                    coarse_kl,
                    their_kl,
                    our_kl / their_kl,
                    coarse_kl / their_kl,
                    our_same,
                    their_same,
                )
            )
            print(table(rows[-1:]).splitlines()[-1], flush=True)
            made.unlink()
    print(table(rows))
    if arguments.json is not None:
        document = {
            "source": arguments.source.name,
            "llama_cpp": f"xllamacpp {xllamacpp.__version__}",
            "tokens": len(tokens),
            "places": len(places),
            "types": [asdict(row) for row in rows],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
        plot(rows, [arguments.json.with_suffix(ending) for ending in (".png", ".svg")])


if __name__ == "__main__":
    main()
