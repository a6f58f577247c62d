"""Which engine gives more tokens a second on this machine, from the same file?

Starts all engines side by side (an idle one costs nothing), asks them the same prompts in turns,
and prints the medians of the runs and each peer's ratio, and where headrace loses:

    python bench/engine_vs_peers.py MODEL.gguf --llama-python P/bin/python \\
        --openvino-python P/bin/python --transformers-python P/bin/python \\
        --runs 3 --json OUT.json --plot OUT

A peer's Python is an environment of its own with `xllamacpp`, `openvino-genai`, or `transformers`
(with `torch`, `accelerate`, `gguf`); one that is not there is left out, with the reason. llama.cpp
is a server over HTTP, as headrace is; the other two are libraries, without HTTP (see
`peer_engines.py`). llama.cpp's wheel is built for AVX2, the libraries choose at run time:
`--isa avx2` (or `avxvnni`) holds headrace and the libraries to the same instructions. `--short`
asks fewer requests, of a shorter prefix, so that a model of a billion weights is through in a
quarter of an hour. `--plot` writes PNG and SVG. headrace runs three times: as it comes, without
guessing ahead, because no peer guesses by default, and, where that is something else, with
activations of 16 bits, which keep the float model's distribution.
bench/engine_table.py makes a table of the figures.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from peer_engines import (
    Engine,
    Figures,
    Question,
    ServedEngine,
    library,
    missing_packages,
    served,
)

questions = (
    Question(1, 128, 0, 128, 3),
    Question(8, 128, 0, 128, 16),
    Question(32, 128, 0, 128, 64),
    Question(16, 544, 512, 64, 32),
)
short_questions = (
    Question(1, 128, 0, 128, 2),
    Question(8, 128, 0, 128, 8),
    Question(32, 128, 0, 128, 32),
    Question(8, 272, 256, 16, 8),
)
our_name, exact_name = "headrace", "headrace, 16 bits"
our_variants = {  # by name, what their environment sets
    our_name: {},
    "headrace, no guesses": {"HEADRACE_DRAFT_TOKENS": "0"},
    exact_name: {"HEADRACE_ACTIVATION_BITS": "16"},
}
peers_path = Path(__file__).parent / "peers"
libraries = {  # a library's program, and what its Python must have
    "openvino": ("openvino_batching.py", ("openvino_genai", "openvino_tokenizers")),
    "transformers": ("transformers_generate.py", ("torch", "transformers", "accelerate", "gguf")),
}
# What holds the libraries to an instruction set: their own variables.
library_limits = {
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OV_CPU_MAX_ISA": "AVX2",  # OpenVINO's own, without which it fails under oneDNN's
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "avxvnni": {
        "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI",
        "OV_CPU_MAX_ISA": "AVX2_VNNI",
        "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch and MKL have nothing between this and AVX-512
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}


def medians(runs: list[Figures]) -> Figures:
    """The median of each figure over the runs, with the range of the rate."""
    rates = [run["output_tokens_per_s"] for run in runs]
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return middle | {"rate_min": min(rates), "rate_max": max(rates)}


def compare(
    engines: Sequence[Engine], asked: Sequence[Question], run_count: int
) -> list[dict[str, object]]:
    """Ask every question of all engines in turns; prints a row as soon as it is known.

    A peer that fails is left out from then on, with the reason."""
    rows: list[dict[str, object]] = []
    remaining = list(engines)
    names = [engine.name for engine in engines]
    print(f"{'output tok/s (of headrace)':42}" + "".join(f"{name:>22}" for name in names))
    for question in asked:
        results: dict[str, list[Figures]] = {name: [] for name in names}
        for run in range(run_count):
            for engine in list(remaining if run % 2 == 0 else reversed(remaining)):
                try:
                    results[engine.name].append(engine.ask(question, seed=run))
                except (SystemExit, OSError, subprocess.SubprocessError) as error:
                    if engine.name in our_variants:
                        raise
                    print(f"{engine.name} is left out from here: {error}")
                    remaining.remove(engine)
        found = {name: medians(runs) for name, runs in results.items() if runs}
        mine = found[our_name]["output_tokens_per_s"]
        rates = {name: figures["output_tokens_per_s"] for name, figures in found.items()}
        cells = [
            f"{rates[name]:12.1f} ({mine / rates[name]:6.2f}x)" if name in rates else f"{'-':>22}"
            for name in names
        ]
        print(f"{question.name:42}{''.join(cells)}", flush=True)
        peers = {name: rate for name, rate in rates.items() if name not in our_variants}
        ratios = {
            each: {name: rates[each] / rate for name, rate in peers.items()}
            for each in our_variants
            if each in rates
        }
        rows.append({"question": question.name, "engines": found, "ratios": ratios})
    return rows


def losses(rows: Sequence[dict[str, object]]) -> list[str]:
    """The questions in which a peer is ahead."""
    out = []
    for row in rows:
        ratios = row["ratios"]
        assert isinstance(ratios, dict)
        out += [
            f"{row['question']}: {peer} is {1 / ratio:.2f} times {mine}"
            for mine, of_peers in ratios.items()
            for peer, ratio in of_peers.items()
            if ratio < 1
        ]
    return out


def has_exact_activations(engine: Engine) -> bool:
    """Whether ours multiplies with 16 bits anyway."""
    assert isinstance(engine, ServedEngine)
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=30) as answer:
        return 'activation_bits="16"' in answer.read().decode()


def start_engines(arguments: argparse.Namespace, stack: ExitStack) -> list[Engine]:
    """headrace and every peer that can run; the others are named with the reason."""
    isa = {"HEADRACE_CPU_ISA": arguments.isa} if arguments.isa else {}
    rest = (str(arguments.model), "--threads", str(arguments.threads))
    ours = [sys.executable, "-m", "headrace.cli.main", "serve", *rest]
    engines: list[Engine] = []
    for name, variables in our_variants.items():
        if name != exact_name or not has_exact_activations(engines[0]):
            engines.append(stack.enter_context(served(name, ours, isa | variables)))
    python = arguments.llama_python
    reason = missing_packages(python, ("xllamacpp",)) if python else "no --llama-python"
    if reason is None:
        command = [str(python), str(peers_path / "llama_server.py"), *rest]
        engines.append(stack.enter_context(served("llama-server", command, {})))
    else:
        print(f"llama-server is left out: {reason}")
    for name, (program, packages) in libraries.items():
        python = getattr(arguments, f"{name}_python")
        reason = missing_packages(python, packages) if python else f"no --{name}-python"
        if reason is None:
            command = [str(python), str(peers_path / program), *rest]
            try:
                limits = library_limits.get(arguments.isa, {})
                engines.append(stack.enter_context(library(name, command, limits)))
            except SystemExit as error:  # it does not read this file
                reason = str(error)
        if reason is not None:
            print(f"{name} is left out: {reason}")
    return engines


def plot(rows: Sequence[dict[str, object]], title: str, path: Path) -> None:
    """Output tokens a second by question and engine, as PNG and SVG."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 -- where a plot is wanted

    figure, axes = plt.subplots(1, len(rows), figsize=(3.2 * len(rows), 3.4), layout="constrained")
    for axis, row in zip(axes, rows, strict=True):
        engines = row["engines"]
        assert isinstance(engines, dict)
        names, rates = list(engines), list(engines.values())
        heights = [rate["output_tokens_per_s"] for rate in rates]
        low = [rate["output_tokens_per_s"] - rate["rate_min"] for rate in rates]
        high = [rate["rate_max"] - rate["output_tokens_per_s"] for rate in rates]
        colors = [f"C{index}" for index in range(len(names))]
        bars = axis.bar(names, heights, yerr=(low, high), color=colors, capsize=3)
        axis.bar_label(bars, fmt="%.0f")
        axis.margins(y=0.1)  # for the labels
        axis.set_title(str(row["question"]).replace(", ", ",\n", 1), fontsize=9)
        axis.tick_params(axis="x", labelrotation=30, labelsize=8)
    axes[0].set_ylabel("output tokens/s")
    figure.suptitle(title)
    for ending in (".png", ".svg"):
        figure.savefig(path.with_name(path.name + ending), dpi=120)


def main() -> None:
    """Read the arguments, run the comparison, write the JSON and the plots."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    for peer in ("llama", *libraries):
        parser.add_argument(f"--{peer}-python", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--isa", choices=("avx2", "avxvnni", "avx512"), help="cap the instruction set"
    )
    parser.add_argument("--short", action="store_true", help="ask fewer requests")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="path of the plots, without an ending")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        engines = start_engines(arguments, stack)
        asked = short_questions if arguments.short else questions
        rows = compare(engines, asked, arguments.runs)
    for line in losses(rows):
        print(f"behind: {line}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    if arguments.json:
        result = {
            "model": arguments.model.name,
            "machine": machine,
            "isa": arguments.isa or "best",
            "runs": arguments.runs,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    if arguments.plot:
        plot(rows, f"{arguments.model.stem}, {machine}", arguments.plot)


if __name__ == "__main__":
    main()
