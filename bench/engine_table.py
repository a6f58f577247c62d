"""One table of the engine's speed beside its peers: what was aimed at, measured, and lost.

Reads what the benches wrote and puts the table between the marks of a document:

    python bench/engine_table.py --http smol.json --http billion-Q4_0.json --prefill prefill.json \\
        --kernels kernels.json --steps steps.json --into docs/benchmarks/engine.md

Files that are not given leave their rows out; plots that lie beside the first ones are shown. A
row that is below its bar says so in bold, as the rows in which a peer is ahead do.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

begin_mark, end_mark = "<!-- table: begin -->\n", "<!-- table: end -->\n"
columns = ("what", "headrace", "best peer", "ratio", "without guesses", "16 bits", "bar", "aim")
header = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
ours, plain, exact = "headrace", "headrace, no guesses", "headrace, 16 bits"
step_noise = 1.05  # of one row's time over its neighbours'


@dataclass(frozen=True)
class Aim:
    """What a question is to reach, as times the better of some peers."""

    bar: float
    aim: float
    peers: tuple[str, ...]


servers = ("llama-server",)
continuous = ("llama-server", "openvino")
one_client = Aim(1.5, 2.0, servers)
many_clients = Aim(2.0, 3.0, continuous)
shared_prefix = Aim(5.0, 8.0, servers)
prefill = Aim(1.3, 2.0, servers)
bandwidth_bar, bandwidth_aim = 0.65, 0.85


def aim_of(question: str) -> Aim:
    """By the question's name, as `peer_engines.Question` makes it."""
    if "shared" in question:
        return shared_prefix
    return one_client if question.startswith("1 client,") else many_clients


def times(ratio: float | None, bar: float) -> str:
    """A ratio, in bold where it misses its bar."""
    if ratio is None:
        return "-"
    return f"{ratio:.2f}" if ratio >= bar else f"**{ratio:.2f}**"


def http_rows(document: dict[str, Any]) -> Iterator[str]:
    """Output tokens a second over HTTP."""
    for row in document["rows"]:
        aim = aim_of(row["question"])
        rates = {name: each["output_tokens_per_s"] for name, each in row["engines"].items()}
        peers = {name: rates[name] for name in aim.peers if name in rates}
        peer = max(peers, key=peers.__getitem__) if peers else None
        best = None if peer is None else peers[peer]
        ratios = {
            name: times(rates[name] / best if best and name in rates else None, aim.bar)
            for name in (ours, plain, exact)
        }
        yield (
            f"| {document['model']}, {row['question']} (output tok/s) | {rates[ours]:.0f} "
            f"| {'-' if peer is None else f'{best:.0f} ({peer})'} "
            f"| {ratios[ours]} | {ratios[plain]} | {ratios[exact]} "
            f"| {aim.bar:g} | {aim.aim:g} |"
        )


def prefill_rows(document: dict[str, Any]) -> Iterator[str]:
    """Tokens a second of a prompt of 512, by type."""
    for row in document["rows"]:
        yield (
            f"| prefill of 512 tokens, {row['type']} (tok/s) | {row['headrace']:.0f} "
            f"| {row['llama']:.0f} (llama.cpp) | {times(row['ratio'], prefill.bar)} | | "
            f"| {prefill.bar:g} | {prefill.aim:g} |"
        )


def bandwidth_rows(document: dict[str, Any]) -> Iterator[str]:
    """Share of what memory gives that one decoding row takes."""
    for result in document["results"]:
        if result["case"] != "decode 1":
            continue
        share = result["bandwidth_share"]
        text = f"{share:.0%}" if share >= bandwidth_bar else f"**{share:.0%}**"
        yield (
            f"| {document['model']}, decode of one row, share of memory bandwidth | {text} "
            f"| | | | | {bandwidth_bar:.0%} | {bandwidth_aim:.0%} |"
        )


def step_rows(document: dict[str, Any]) -> Iterator[str]:
    """The row of 1 to 32 that costs most over the mean of the rows around it.

    One row may cost what two do, and the last goes on as the two before it do."""
    step_ms = document["step_ms"]
    costs = {
        rows: step_ms[rows - 1] / ((step_ms[rows - 2] + step_ms[rows]) / 2)
        for rows in range(2, len(step_ms))
    }
    costs |= {1: step_ms[0] / step_ms[1]}
    costs |= {len(step_ms): step_ms[-1] / (2 * step_ms[-2] - step_ms[-3])}
    worst = max(costs, key=costs.__getitem__)
    text = f"{costs[worst]:.3f} (row {worst})"
    yield (
        f"| {document['model']}, step of n rows over its neighbours', largest "
        f"| {text if costs[worst] <= step_noise else f'**{text}**'} | | | | | {step_noise:g} | |"
    )


def behind(document: dict[str, Any]) -> Iterator[str]:
    """Every peer that is ahead, whether it is aimed at or not."""
    for row in document["rows"]:
        for mine, of_peers in row["ratios"].items():
            for peer, ratio in of_peers.items():
                if ratio < 1:
                    where = f"{document['model']}, {row['question']}"
                    yield f"* {where}: {peer} is {1 / ratio:.2f} times {mine}."


def behind_prefill(document: dict[str, Any]) -> Iterator[str]:
    """Every type whose prompts llama.cpp computes faster."""
    for row in document["rows"]:
        if row["ratio"] < 1:
            what = f"prefill of 512 tokens, {row['type']}"
            yield f"* {what}: llama.cpp is {1 / row['ratio']:.2f} times headrace."


def table(arguments: argparse.Namespace) -> str:
    """The whole text between the marks."""
    http = [read(path) for path in arguments.http]
    rows = [row for document in http for row in http_rows(document)]
    for paths, make in (
        (arguments.prefill, prefill_rows),
        (arguments.kernels, bandwidth_rows),
        (arguments.steps, step_rows),
    ):
        rows += [row for path in paths for row in make(read(path))]
    lost = [line for document in http for line in behind(document)]
    lost += [line for path in arguments.prefill for line in behind_prefill(read(path))]
    told = "\n".join(lost) or "* In no question is a peer ahead."
    where = ", ".join(dict.fromkeys(f"{each['machine']}, {each['isa']}" for each in http))
    plots = [path.with_suffix(".png") for path in arguments.http]
    shown = [f"\n![{path.stem}, output tokens/s]({path.name})\n" for path in plots if path.exists()]
    return (
        f"On {where or 'this machine'}; bold: below its bar.\n\n{header}\n"
        + "\n".join(rows)
        + f"\n\nWhere a peer is ahead:\n\n{told}\n"
        + "".join(shown)
    )


def read(path: Path) -> dict[str, Any]:
    """A bench's figures."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def put(text: str, document: Path) -> None:
    """Replace what is between the marks; SystemExit if they are not there."""
    before, begin, rest = document.read_text().partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not (begin and end):
        raise SystemExit(f"{document} has no {begin_mark.strip()} ... {end_mark.strip()}")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the figures, print the table, and put it where it belongs."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("http", "prefill", "kernels", "steps"):
        parser.add_argument(f"--{name}", type=Path, action="append", default=[])
    parser.add_argument("--into", type=Path, help="a document with the marks")
    found = parser.parse_args(arguments)
    text = table(found)
    print(text)
    if found.into is not None:
        put(text, found.into)


if __name__ == "__main__":
    main()
