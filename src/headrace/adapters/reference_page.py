"""The reference page of the engines, made from their adapters: what each does, and how we know.

python -m headrace.adapters.reference_page > docs/reference/engines.md
"""

import re
import sys
from collections.abc import Callable, Sequence

from headrace.adapters.facts import Ability, Abort
from headrace.adapters.protocol import EngineAdapter
from headrace.adapters.registry import all_adapters

traps_heading = "Known traps:"
item_pattern = re.compile(r"^\* (.*?)(?=^\* |\Z)", re.DOTALL | re.MULTILINE)
yes, no, none = "yes", "no", "none"

opening = """# Engines

Made by `python -m headrace.adapters.reference_page`; a test fails when this page is not what that
command prints.

A deployment names its engine (`headrace deployments create --engine NAME`). Everything that
headrace knows about an engine is in its adapter (`src/headrace/adapters/`), data and pure
functions.

How sure we are differs, and the table says it. Of an engine that was tested "by replayed
exchanges", the answers were written from its documents and sources; the engine itself never ran
with headrace, and a version of yours may differ. Of Transformers' server the end-to-end test
covers an answer, a stream, usage and bills, and a caller who leaves, with a small
model of random weights on a CPU; it runs where PyTorch and `accelerate` are. Of llama.cpp the
end-to-end tests cover answers, streams, usage, aborts, context errors, the key, a killed engine and
the end of the supervisor, with one model on a CPU. What an engine "can do" is what its documents
claim of the version that the adapter was written from, some of it with an option that its traps
name; the gateway passes on no more than its own API has.
"""

Row = tuple[str, Callable[[EngineAdapter], str]]


looked_at = """## Looked at, and without an adapter

OpenVINO GenAI is a library. `openvino-openai-api` 0.1.1 puts a server before it. It was
installed and its source read, and no answer of it was measured: it has `/v1/chat/completions`
alone, so no list of models and no health route says when it is ready, and a deployment of
`managed` never is. Its streams tell no usage, unstreamed answers count words as tokens, `stop`
is not used, and a caller who leaves ends nothing.
"""


def page(adapters: Sequence[EngineAdapter] = all_adapters) -> str:
    """The whole page, in Markdown."""
    parts = [
        opening,
        "## How each was tested\n\n" + table(evidence_rows, adapters),
        "## What headrace does with each\n\n" + table(behaviour_rows, adapters),
        "## What each can do, by its documents\n\n" + table(ability_rows(), adapters),
        metrics_note,
        *(section(adapter) for adapter in adapters),
        looked_at,
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def table(rows: Sequence[Row], adapters: Sequence[EngineAdapter]) -> str:
    """A line for each engine, a column for each row of the definition."""
    heads = ["engine", *(title for title, _ in rows)]
    lines = [heads, ["---"] * len(heads)]
    lines += [[f"`{adapter.name}`", *(cell(adapter) for _, cell in rows)] for adapter in adapters]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _truth(value: bool) -> str:
    return yes if value else no


def _abort_bill(adapter: EngineAdapter) -> str:
    if adapter.facts.abort is Abort.NONE:
        return "its last word: the answer is read to its end"
    if adapter.keeps_usage_records:
        return "the engine's record of the request"
    if adapter.facts.stream_usage == "in every chunk":
        return "the last usage in the stream"
    return "estimate: prompt by its bytes, output by chunks"


evidence_rows: tuple[Row, ...] = (
    ("product", lambda adapter: adapter.facts.title),
    ("tested with", lambda adapter: adapter.facts.evidence.value),
    ("tests", lambda adapter: f"`{adapter.facts.tests}`"),
    ("written from", lambda adapter: adapter.facts.version_read),
)
behaviour_rows: tuple[Row, ...] = (
    ("started", lambda adapter: adapter.facts.start.value),
    ("package", lambda adapter: adapter.facts.package or none),
    ("image", lambda adapter: f"`{adapter.facts.image}`" if adapter.facts.image else none),
    ("asks for our key", lambda adapter: _truth(adapter.facts.authenticates)),
    ("ready by", lambda adapter: f"`{adapter.readiness_path}`"),
    ("answers while loading", lambda adapter: _truth(adapter.facts.listens_while_loading)),
    ("load from", lambda adapter: f"`{adapter.metrics_path}`" if adapter.metrics_path else none),
    ("usage in streams", lambda adapter: adapter.facts.stream_usage.value),
    ("an abort is billed by", _abort_bill),
    ("a LoRA adapter is asked for by", lambda adapter: adapter.facts.lora or none),
    ("is told what tenants share", lambda adapter: _truth(adapter.facts.shares_prompts)),
    ("a request is ended by", lambda adapter: adapter.facts.abort.value),
)

metrics_note = """## One vocabulary for load

Where engines define a number differently, the adapter makes it ours: requests running and waiting
are counts over all ranks of a replica; KV usage is 0 to 1, leaves out what can be reclaimed at
once, and is the fullest rank's; prompt tokens include those from a cache; counters only grow.
What an engine does not tell is unknown, never zero. Lines that are malformed are left out.
"""


def ability_rows() -> tuple[Row, ...]:
    """A column for each ability."""

    def row(ability: Ability) -> Row:
        return ability.value, lambda adapter: _truth(ability in adapter.facts.abilities)

    return tuple(row(ability) for ability in Ability)


def section(adapter: EngineAdapter) -> str:
    """One engine: what its module says, its traps as a table."""
    words, _, traps = adapter.facts.notes.partition(traps_heading)
    parts = [f"## {adapter.facts.title}: `{adapter.name}`\n", words.strip(), ""]
    found = [trap_cells(" ".join(item.split())) for item in item_pattern.findall(traps)]
    if found:
        lines = [("versions", "trap", "what headrace does"), ("---",) * 3, *found]
        parts += ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(parts) + "\n"


def trap_cells(item: str) -> tuple[str, str, str]:
    """`versions: trap -> answer` as its three parts."""
    what, arrow, answer = item.partition(" -> ")
    versions, colon, trap = what.partition(": ")
    assert arrow, f"a trap without an answer: {item}"
    assert colon, f"a trap without versions: {item}"
    return versions, trap, answer


if __name__ == "__main__":
    sys.stdout.write(page())
